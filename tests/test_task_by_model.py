"""evo tasks new --model: a scripted server answers, everything else is real (sandbox, compiler, interpreter)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from analysis.benchmarks.endpoint import Endpoint, Reply
from evo.api import load_task
from evo.cli.main import main
from evo.core.errors import EvoWarning
from tests.drafting_support import KERNEL, MALICIOUS, TASK, WRONG, answer
from tests.llm_endpoint import error, in_turn

Make = Callable[..., int]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Runs `evo tasks new DIR kernel.py --model MODEL ...` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "EVO_API_KEY_M"):
        monkeypatch.delenv(name, raising=False)
    Path("kernel.py").write_text(KERNEL)

    def run(folder: str, model: str, *more: str) -> int:
        return main(["tasks", "new", folder, "kernel.py", "--model", model, "--gpus", "none", *more])

    return run


def scripted(*texts: str) -> Endpoint:
    return Endpoint(in_turn(*(Reply(text=text) for text in texts)))


def test_a_right_answer_becomes_a_frozen_task_that_replays(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(answer(TASK)) as endpoint:
        assert make("mine", f"m@{endpoint.url}") == 0
    out = capsys.readouterr().out
    assert "task.py was written by the model m." in out and "read it before you rely on it" in out
    assert "long (tune): N=65536, float32" in out
    assert Path("mine/task.py").read_text() == TASK and Path("mine/kernel.py").read_text() == KERNEL
    frozen = json.loads(Path("mine/task.json").read_text())
    (kept,) = [json.loads(line) for line in Path("mine/answers.jsonl").read_text().splitlines()]
    assert (frozen["model"], frozen["rounds"], frozen["prompt"]) == ("m", 1, kept["prompt_hash"])
    assert frozen["task"] == load_task("mine").hash
    assert KERNEL.strip() in endpoint.requests[0]["messages"][1]["content"]
    assert "warning" not in capsys.readouterr().err

    assert make("softmax", "replay:mine/answers.jsonl") == 0
    assert json.loads(Path("softmax/task.json").read_text()) == frozen
    assert "evo run ./softmax\n" in capsys.readouterr().out  # the name alone is that of a built-in task

    Path("mine/task.py").write_text(TASK + "\ntolerance = 0.5\n")
    with pytest.warns(EvoWarning, match=r"task\.py in .* changed since"):
        load_task("mine")


def test_wrong_and_malicious_answers_are_told_and_mended(
    make: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted(answer(MALICIOUS), answer(WRONG), answer(TASK)) as endpoint:
        assert make("mine", f"m@{endpoint.url}") == 0
    first, second, third = ([m["content"] for m in r["messages"]] for r in endpoint.requests)
    assert second[:3] == [*first, answer(MALICIOUS)] and third[:4] == second
    assert "import socket: a task imports torch, math" in second[3] and "open is not available" in second[3]
    assert "was found wrong at stage verify" in third[5]
    assert str(tmp_path) not in third[5] and "/tmp" not in third[5]  # a replay is told the same
    assert Path("mine/drafts/1.py").read_text() == MALICIOUS and Path("mine/drafts/2.py").read_text() == WRONG
    assert Path("mine/task.py").read_text() == TASK
    assert json.loads(Path("mine/task.json").read_text())["rounds"] == 3

    assert make("again", "replay:mine/answers.jsonl") == 0
    assert Path("again/task.json").read_text() == Path("mine/task.json").read_text()


def test_after_three_useless_answers_the_drafts_are_kept_and_nothing_is_a_task(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted("I would rather not.", answer(MALICIOUS), "```python\nx = 1\n") as endpoint:
        assert make("mine", f"m@{endpoint.url}") == 1
    assert len(endpoint.requests) == 3
    err = capsys.readouterr().err
    assert "no task was made: 3 answers could not be used; the last reason: a block of code is never closed" in err
    assert sorted(p.name for p in Path("mine/drafts").iterdir()) == [
        "1.reason.txt", "2.py", "2.reason.txt", "3.reason.txt",
    ]  # fmt: skip
    assert sorted(p.name for p in Path("mine").iterdir()) == ["answers.jsonl", "drafts"]
    assert make("mine", f"m@{endpoint.url}") == 2
    assert "mine has answers.jsonl and drafts; choose another" in capsys.readouterr().err


def test_a_mailbox_can_answer(make: Make) -> None:
    def reply() -> None:
        while not (asked := list(Path("box").glob("*.request.md"))):
            time.sleep(0.05)
        Path("box/draft").write_text(answer(TASK))
        Path("box/draft").rename(str(asked[0]).replace("request", "answer"))

    person = threading.Thread(target=reply, daemon=True)
    person.start()
    assert make("mine", "me@mailbox:box") == 0
    person.join()
    assert Path("mine/task.py").read_text() == TASK


def test_limits_and_refusals(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted("nothing") as endpoint:
        assert make("poor", f"m@{endpoint.url}", "--max-tokens", "100") == 1
        assert endpoint.requests == []
        assert "the limits on tokens or dollars have no room" in capsys.readouterr().err
    with Endpoint(in_turn(error(401, "who are you?"))) as endpoint:
        assert make("locked", f"m@{endpoint.url}") == 2
        assert "put a key into EVO_API_KEY_M or OPENAI_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m"], "expected NAME@BASE_URL"),
        (["m@http://localhost:9/v1", "--max-usd", "1"], "--max-usd: expected a price of m, got none"),
        (["m@http://localhost:9/v1", "--max-tokens", "0"], "--max-tokens: expected a number above 0, got 0"),
        (
            ["m@http://localhost:9/v1", "--target", "sm_1"],
            "target: expected one of sm_90, h100, sm_80, sm_89, rtx4090, sm_100, got 'sm_1'",
        ),
        (["replay:nowhere.jsonl"], "expected a run's folder or a file of `evo calls`"),
    ],
)
def test_misuse_is_said_before_anything_is_asked(
    make: Make, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert make("mine", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not Path("mine").exists()


def test_a_kernel_that_nothing_launches_is_not_asked_about(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    Path("kernel.py").write_text("x = 1\n")
    assert make("mine", "me@mailbox:box") == 2
    assert "expected a host function" in capsys.readouterr().err
    assert not Path("box").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_validates_the_task(make: Make) -> None:
    pytest.importorskip("openai")
    with scripted(answer(WRONG), answer(TASK)) as endpoint:
        assert make("mine", f"m@{endpoint.url}", "--gpus", "1") == 0
    assert "was found wrong at stage" in Path("mine/drafts/1.reason.txt").read_text()
    assert json.loads(Path("mine/task.json").read_text())["validated"] == "measured on a GPU"
