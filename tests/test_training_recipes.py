"""analysis.training: what is trained on, and the advantage of each token."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.export import export_training
from analysis.training.data import fastest, prompts, read_rows
from analysis.training.tokens import group_advantages, plan_length, token_advantages
from evo.core.errors import ConfigError
from evo.core.rewards import ALPHA
from operators.llm.base import Unreadable
from operators.llm.operators import LlmMutate
from operators.registry import LLM_OPERATORS

RUN = Path(__file__).parent.parent / "runs" / "reference" / "h200-claude" / "softmax"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The rows of a stored run whose answers a real model wrote."""
    out = tmp_path_factory.mktemp("tables")
    for kind in ("sft", "grpo"):
        export_training([RUN], out / kind, kind, operators=LLM_OPERATORS)
    return {kind: list(read_rows(out / kind / f"{kind}.jsonl")) for kind in ("sft", "grpo")}


# --- data ------------------------------------------------------------------------------------------------------------


def row(prompt: str, completion: str, speedup: float, **others: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": completion}],
        "speedup": speedup,
        "task": "softmax",
        "target": "sm_90",
        "estimated": False,
        **others,
    }


def taken(rows: Sequence[Any], keep: int) -> list[tuple[str, str]]:
    return [(e["prompt"][0]["content"], e["completion"][0]["content"]) for e in fastest(rows, keep)]


def test_the_fastest_completions_of_each_prompt_are_taken_once() -> None:
    rows = [row("p", "slow", 1.1), row("q", "only", 1.2), row("p", "fast", 3.0), row("p", "fast", 2.9)]
    rows.append(row("p", "middle", 2.0))
    assert taken(rows, 1) == [("p", "fast"), ("q", "only")]
    assert taken(rows, 2) == [("p", "fast"), ("p", "middle"), ("q", "only")]
    assert len(taken(rows, 9)) == 4
    assert set(fastest(rows, 1)[0]) == {"prompt", "completion", "speedup"}


def test_measured_speedups_go_before_estimated_ones_and_targets_apart() -> None:
    assert taken([row("p", "guess", 9.0, estimated=True), row("p", "measured", 1.5)], 1) == [("p", "measured")]
    assert len(taken([row("p", "a", 1.5), row("p", "b", 1.2, target="sm_100")], 1)) == 2


def test_fine_tuning_takes_no_rows_of_answers_that_may_be_wrong(tables: dict[str, list[Any]]) -> None:
    with pytest.raises(ConfigError, match="expected rows of the table sft, got rows of grpo"):
        fastest(tables["grpo"], 1)
    with pytest.raises(ConfigError, match="expected at least 1"):
        fastest(tables["sft"], 0)


def test_examples_of_a_stored_run_are_its_fastest(tables: dict[str, list[Any]]) -> None:
    examples = fastest(tables["sft"], 1)
    assert 1 < len(examples) < len(tables["sft"])
    for example in examples:
        assert example["speedup"] == max(r["speedup"] for r in tables["sft"] if r["prompt"] == example["prompt"])


def test_prompts_are_those_about_the_seed_kernel(tables: dict[str, list[Any]]) -> None:
    found = prompts(tables["grpo"])
    assert {json.dumps(p["prompt"]) for p in found} == {
        json.dumps(r["prompt"]) for r in tables["grpo"] if r["parents"] == [0]
    }
    assert len(found) > 1 and {p["task"] for p in found} == {"softmax"}
    about = row("p", "", 1.0, parents=[3])
    assert prompts([about, about | {"parents": [0, 2]}]) == []
    assert len(prompts([about | {"parents": []}] * 2)) == 1


def test_a_file_that_is_no_table_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "sft.parquet").write_bytes(b"PAR1\xff")
    for name in ("sft.parquet", "none.jsonl"):
        with pytest.raises(ConfigError, match="JSON lines"):
            list(read_rows(tmp_path / name))


# --- tokens ----------------------------------------------------------------------------------------------------------

ANSWER = (
    "Plan: keep the row in registers → one pass.\n\n```python\nimport triton\n\n@triton.jit\ndef k():\n    pass\n```\n"
)


def decode_bytes(tokens: Sequence[int]) -> str:
    """Of a tokenizer with a token for each byte, and a token 256 that ends an answer and is not shown."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def words_of(text: str, size: int) -> tuple[list[int], Any]:
    """Tokens of `size` characters each, and what decodes them."""
    words = [text[i : i + size] for i in range(0, len(text), size)]
    return list(range(len(words))), lambda tokens: "".join(words[token] for token in tokens)


def spans_of(answer: str) -> Any:
    draft = LlmMutate().read(answer, ())
    assert not isinstance(draft, Unreadable)
    return draft.spans


def test_tokens_of_the_plan_are_those_that_end_within_it() -> None:
    spans = spans_of(ANSWER)
    end = spans["plan"][1]
    assert ANSWER[end - 5 : end] == "pass." and spans["code"][0] > end
    for size in range(1, 12):
        tokens, decode = words_of(ANSWER, size)
        assert plan_length(decode, tokens, ANSWER, spans) == end // size


def test_characters_of_several_tokens_are_counted_once() -> None:
    tokens = [*ANSWER.encode(), 256]
    end = spans_of(ANSWER)["plan"][1]
    assert plan_length(decode_bytes, tokens, ANSWER, spans_of(ANSWER)) == len(ANSWER[:end].encode()) == end + 2
    arrow = ANSWER.index("→") + 1  # the last character of this plan has three tokens
    spans = {"plan": (0, arrow), "code": (arrow + 1, len(ANSWER))}
    assert plan_length(decode_bytes, tokens, ANSWER, spans) == len(ANSWER[:arrow].encode())


def test_reasoning_before_the_plan_belongs_to_it() -> None:
    answer = f"<think>rows fit into registers</think>\n{ANSWER}"
    tokens, decode = words_of(answer, 1)
    assert plan_length(decode, tokens, answer, spans_of(answer)) == answer.index("\n\n```python")
    # A trainer may give the reasoning apart: then the rewarded text is a part of what was sampled.
    assert plan_length(decode, tokens, ANSWER, spans_of(ANSWER)) == answer.index("\n\n```python")


def test_an_answer_without_code_has_no_plan() -> None:
    tokens, decode = words_of("I would rather not.", 3)
    assert plan_length(decode, tokens, "I would rather not.", {}) == 0


def test_an_answer_that_begins_with_code_has_no_plan() -> None:
    answer = ANSWER[ANSWER.index("```python") :]
    tokens, decode = words_of(answer, 1)
    assert plan_length(decode, tokens, answer, spans_of(answer)) == 0


def test_tokens_of_another_text_are_an_error() -> None:
    tokens, decode = words_of("something else", 1)
    with pytest.raises(ValueError, match="expected the rewarded text within the decoded tokens"):
        plan_length(decode, tokens, ANSWER, spans_of(ANSWER))


def test_advantages_are_within_groups() -> None:
    rewards = [1.0, 0.0, 0.0, 3.0, 5.0, 4.0]
    expected = [(r - statistics.fmean(g)) / (statistics.stdev(g) + 1e-4) for g in (rewards[:3], rewards[3:]) for r in g]
    assert group_advantages(rewards, 3) == pytest.approx(expected, rel=1e-12)
    assert group_advantages([2.0] * 4, 4) == [0.0] * 4


def test_an_unknown_reward_has_no_advantage_and_no_part_in_its_group() -> None:
    assert group_advantages([1.0, math.nan, 0.0], 3) == pytest.approx(
        [0.5 / (0.5**0.5 + 1e-4), 0, -0.5 / (0.5**0.5 + 1e-4)]
    )
    assert group_advantages([1.0, math.nan, math.nan, math.nan], 2) == [0.0] * 4


def test_alpha_weighs_the_tokens_of_the_plan() -> None:
    assert token_advantages(2.0, -1.0, 3, 5, ALPHA) == pytest.approx([0.2, 0.2, 0.2, -1.0, -1.0])
    assert token_advantages(2.0, -1.0, 0, 2, ALPHA) == [-1.0, -1.0]
    assert token_advantages(2.0, -1.0, 1, 2, 0.0) == [0.0, -1.0]


def test_exported_advantages_give_the_same_weights(tables: dict[str, list[Any]]) -> None:
    groups: dict[str, list[Any]] = {}
    for each in tables["grpo"]:
        groups.setdefault(each["group"], []).append(each)
    assert max(map(len, groups.values())) == 3
    for group in groups.values():
        plan, code = (
            group_advantages([r[f"tritonrl_{part}_reward"] for r in group], len(group)) for part in ("plan", "code")
        )
        assert plan == pytest.approx([r["tritonrl_plan_advantage"] for r in group], rel=1e-6)
        assert code == pytest.approx([r["tritonrl_code_advantage"] for r in group], rel=1e-6)
