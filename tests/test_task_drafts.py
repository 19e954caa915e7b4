"""evo.llm.task_drafts: attempts, bills and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.benchmarks.endpoint import Endpoint, Reply
from evo.core.models import Model
from evo.llm import queue as lane_module
from evo.llm.base import LlmError
from evo.llm.budget import ModelBudget
from evo.llm.task_drafts import Dialogue
from operators.llm.base import Message, Prompt
from tests.llm_endpoint import error, in_turn


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "BACKOFF_S", 0.01)


def prompt(text: str) -> Prompt:
    return Prompt("task", (Message("user", text),))


def test_failures_that_pass_are_tried_again_and_answers_are_kept_as_they_come(tmp_path: Path) -> None:
    limits = ModelBudget()
    replies = in_turn(error(500, "oops"), Reply(text=" "), Reply(text="one"), Reply(text="two"))
    with Endpoint(replies) as endpoint:
        model = Model("m", endpoint.url, max_tokens=100, usd_in=1.0, usd_out=1.0)
        with Dialogue(model, {}, limits, tmp_path / "answers.jsonl") as dialogue:
            texts = [found.text for text in ("a", "b") if (found := dialogue.ask(prompt(text)))]
    assert texts == ["one", "two"] and len(endpoint.requests) == 4
    assert limits.tokens == endpoint.billed == 90
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(r["prompt_hash"], r["answer"], r["tokens_in"], r["tokens_out"]) for r in rows] == [
        (prompt("a").hash, "one", 10, 20),
        (prompt("b").hash, "two", 10, 20),
    ]
    assert rows[0]["messages"] == [{"role": "user", "text": "a"}]
    replayed = Model("m", f"replay:{tmp_path / 'answers.jsonl'}")
    with Dialogue(replayed, {}, ModelBudget(), tmp_path / "again.jsonl") as dialogue:
        assert dialogue.ask(prompt("b")).text == "two"  # type: ignore[union-attr]
        with pytest.raises(LlmError, match="other prompts"):
            dialogue.ask(prompt("c"))


def test_what_was_not_billed_stays_charged_until_nothing_fits(tmp_path: Path) -> None:
    limits = ModelBudget(max_tokens=600)
    with Endpoint(in_turn(Reply(drop=True))) as endpoint:
        model = Model("m", endpoint.url, max_tokens=100, attempts=6)
        with Dialogue(model, {}, limits, tmp_path / "answers.jsonl") as dialogue:
            assert dialogue.ask(prompt("a")) is None
    assert len(endpoint.requests) == 1 and 350 < limits.tokens <= 600
    assert not (tmp_path / "answers.jsonl").exists()


def test_what_is_read_of_an_answer_can_be_written_to_a_file(tmp_path: Path) -> None:
    with Endpoint(in_turn(Reply(text="half \ud800"))) as endpoint:
        model = Model("m", endpoint.url, max_tokens=100)
        with Dialogue(model, {}, ModelBudget(), tmp_path / "answers.jsonl") as dialogue:
            assert dialogue.ask(prompt("a")).text == "half \\ud800"  # type: ignore[union-attr]


def test_no_answer_in_any_attempt_is_an_error(tmp_path: Path) -> None:
    with Endpoint(in_turn(error(500, "oops"))) as endpoint:
        model = Model("m", endpoint.url, attempts=2)
        wrong = pytest.raises(LlmError, match=r"got none in 2 attempts: .*oops")
        with Dialogue(model, {}, ModelBudget(), tmp_path / "answers.jsonl") as dialogue, wrong:
            dialogue.ask(prompt("a"))


def test_a_prompt_that_does_not_fit_is_asked_once(tmp_path: Path) -> None:
    with Endpoint(in_turn(error(400, "exceeds the available context size"))) as endpoint:
        wrong = pytest.raises(LlmError, match=r"got none in 1 attempts: .*context size")
        with Dialogue(Model("m", endpoint.url), {}, ModelBudget(), tmp_path / "answers.jsonl") as dialogue, wrong:
            dialogue.ask(prompt("a"))
        assert len(endpoint.requests) == 1
