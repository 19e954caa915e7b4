"""evo.rewards and evo.core.rewards: what a completion gets, from whom, and that nothing about a kernel raises."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import evo
from analysis.benchmarks.instant import InstantEvaluator
from analysis.export import export_training
from evo.core.errors import ConfigError, ServiceError
from evo.core.records import Candidate, Evaluation, Verdict
from evo.core.rewards import ALPHA, EPSILON, Judged, advantages
from evo.rewards import CLIP, SCHEMES, Reward, TritonReward
from evo.storage.queries import RunReader
from operators.registry import LLM_OPERATORS
from tests.analysis_support import answered, fill
from tests.engine_support import failed_trial, ok_trial
from tests.service_support import ServerProcess, source

TASK = "vector_sin"
SEED = (Path(__file__).parents[1] / "fitness" / "tasks" / "builtin" / TASK / "kernel.py").read_text(encoding="utf-8")


def block(code: str) -> str:
    return f"Plan: faster.\n```python\n{code}```\nThat is all."


class Known:
    """Evaluates what is known: candidates by id.  An exception is raised."""

    def __init__(self, *known: Evaluation, **errors: Exception) -> None:
        self.known: dict[str, Evaluation | Exception] = {each.candidate: each for each in known}
        self.known |= {Candidate(text).id: error for text, error in errors.items()}
        self.asked: list[str] = []

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
        for text in sources:
            self.asked.append(text)
            found = self.known[Candidate(text).id]
            if isinstance(found, Exception):
                raise found
            yield found


def rewards(evaluator: Known, *completions: str, **settings: Any) -> list[Reward]:
    return TritonReward(evaluator=evaluator, **settings)(completions)


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "stage", "flags"),
    [
        (Verdict.COMPILE_ERROR, "answer", (False, False, False)),
        (Verdict.REJECTED, "answer", (False, False, False)),
        (Verdict.COMPILE_ERROR, "gate", (False, False, False)),
        (Verdict.REJECTED, "gate", (True, False, False)),
        (Verdict.REJECTED, "record", (True, False, False)),
        (Verdict.COMPILE_ERROR, "record", (True, True, False)),
        (Verdict.UNSUPPORTED, "record", (True, True, False)),
        (Verdict.COMPILE_ERROR, "compile", (True, True, False)),
        (Verdict.OUT_OF_MEMORY, "screen", (True, True, True)),
        (Verdict.TIMEOUT, "verify", (True, True, True)),
        (Verdict.REJECTED, "time", (True, False, True)),
    ],
)
def test_flags_say_how_far_an_answer_came(verdict: Verdict, stage: str, flags: tuple[bool, ...]) -> None:
    judged = Judged(verdict, stage)
    assert (judged.syntax, judged.rules, judged.compiled) == flags
    assert not judged.correct and set(judged.rewards.values()) == {0.0}


def test_advantages_of_a_group() -> None:
    assert advantages([]) == [] and advantages([3.0]) == [0.0] and advantages([2.0, 2.0]) == [0.0, 0.0]
    assert advantages([0.0, 1.0]) == pytest.approx([-0.5 / (0.5**0.5 + EPSILON), 0.5 / (0.5**0.5 + EPSILON)])


@pytest.mark.parametrize(
    ("scheme", "value", "fast"), [("autotriton", 1.0, 1.0), ("tritonrl", 1.3, 2.0), ("speedup", 3.0, 10.0)]
)
def test_values_of_the_schemes(scheme: str, value: float, fast: float) -> None:
    evaluations = [trial.evaluation for trial in (ok_trial(1, 3.0), ok_trial(2, 68.0), failed_trial(3))]
    found = rewards(Known(*evaluations), answered(1), answered(2), answered(3), scheme=scheme)
    assert [each.value for each in found] == pytest.approx([value, fast, 0.0])
    assert [each.plan for each in found] == pytest.approx([3.0, CLIP[1], 0.0])
    assert [each.code for each in found] == [1.0, 1.0, 0.0] and ALPHA == 0.1
    assert [each.speedup for each in found] == [pytest.approx(3.0), pytest.approx(68.0), None], "as found, not clipped"
    assert [each.correct for each in found] == [True, True, False] and found[0].estimated
    assert (found[2].verdict, found[2].stage, found[2].reason) == (Verdict.WRONG, "verify", "wrong result")


def test_a_right_kernel_gets_the_least_speedup_and_a_wrong_one_nothing() -> None:
    evaluations = ok_trial(1, 0.01).evaluation, failed_trial(2).evaluation
    found = rewards(Known(*evaluations), answered(1), answered(2), scheme="speedup", clip=(0.5, 2))
    assert [each.value for each in found] == [0.5, 0.0]


# --- reading completions ---------------------------------------------------------------------------------------------


def test_spans_are_places_in_the_completion() -> None:
    text = f"<think>hm ```</think>\n{answered(1, 'Plan: tile ü.')}"
    (found,) = rewards(Known(ok_trial(1).evaluation), text)
    plan, code = (text[slice(*found.spans[part])] for part in ("plan", "code"))
    assert plan == "Plan: tile ü." and f"```python\n{code}```" == text.partition("ü.\n")[2]


@pytest.mark.parametrize(
    "text", ["", "I would rather not.", "```python\nx = 1", "<think>on and on", block("x = '\ud800'\n")]
)
def test_a_completion_without_code_gets_0_and_nothing_is_evaluated(text: str) -> None:
    evaluator = Known()
    (found,) = rewards(evaluator, text)
    assert (found.value, found.plan, found.code, found.spans, found.stage) == (0.0, 0.0, 0.0, {}, "answer")
    assert found.reason and not evaluator.asked


def test_equal_kernels_are_evaluated_once() -> None:
    evaluator = Known(ok_trial(1, 2.0).evaluation)
    found = rewards(evaluator, answered(1), "no", answered(1, "Plan: another."), scheme="speedup")
    assert [each.value for each in found] == [2.0, 0.0, 2.0] and len(evaluator.asked) == 1


def test_edits_change_the_parent() -> None:
    change = "<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"
    evaluator = Known(x=ValueError())
    evaluator.evaluate_many = lambda sources: evaluator.asked.extend(sources) or iter([ok_trial(1).evaluation])  # type: ignore
    (found,) = rewards(evaluator, f"Plan: more.\n{change}", parent="x = 1\ny = 3\n")
    assert evaluator.asked == ["x = 2\ny = 3\n"] and found.value == 1.0


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_of_the_evaluator_is_no_reward_and_the_others_have_theirs(caplog: pytest.LogCaptureFixture) -> None:
    failed = failed_trial(1, Verdict.INFRASTRUCTURE, "the runner died")
    evaluator = Known(failed.evaluation, ok_trial(2, 2.0).evaluation, **{"boom = 1\n": RuntimeError("a fault of evo")})
    found = rewards(evaluator, answered(1), block("boom = 1\n"), answered(2))
    assert [(each.value, each.plan, each.code) for each in found] == [(None,) * 3, (None,) * 3, (1.0, 2.0, 1.0)]
    assert {each.verdict for each in found[:2]} == {Verdict.INFRASTRUCTURE}
    assert [each.reason for each in found] == ["the runner died", "a fault of evo", ""]
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert any("the runner died" in line for line in errors) and any(
        "evo failed on a kernel" in line for line in errors
    )


def test_a_service_that_refuses_is_raised() -> None:
    with pytest.raises(ServiceError, match="401"):
        rewards(Known(**{"boom = 1\n": ServiceError("the service answered 401", 401)}), block("boom = 1\n"))


def test_what_breaks_a_rule_gets_0_and_is_logged_without_hidden_characters(caplog: pytest.LogCaptureFixture) -> None:
    broken = Evaluation(Candidate("boom = 1\n").id, Verdict.REJECTED, "gate", "line 1: no \x1b[2J")
    (found,) = rewards(Known(broken), block("boom = 1\n"))
    assert (found.value, found.code, found.reason) == (0.0, 0.0, "line 1: no \x1b[2J")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and r"at stage gate: line 1: no \x1b[2J" in record.message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "fast"}, f"scheme: expected one of {', '.join(SCHEMES)}, got 'fast'"),
        ({"clip": (2, 1)}, "clip: expected two numbers, 0 <= low < high, got (2, 1)"),
        ({"clip": 10}, "got 10"),
        ({"clip": (0, float("nan"))}, "got (0, nan)"),
        ({"url": "http://localhost:1"}, "task: expected the name of a task of the service, got ''"),
        ({"url": "http://localhost:1", "gpus": "none"}, "expected url alone, got gpus too"),
        ({"evaluator": Known(), "url": "http://localhost:1"}, "expected evaluator alone, got url too"),
        ({"task": "no-such-task"}, "no-such-task"),
        ({"task": TASK, "workers": 0}, "workers: expected"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(evo.EvoError) as raised:
        TritonReward(**settings)
    assert words in str(raised.value)


# --- the same as an export, and everything real ----------------------------------------------------------------------


def test_advantages_are_those_of_the_export(tmp_path: Path) -> None:
    """The completions of exported rows, rewarded again, give the same advantages in the same groups."""
    fill(tmp_path / "run")
    export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=LLM_OPERATORS)
    with RunReader(tmp_path / "run") as run:
        evaluator = Known(*(trial.evaluation for trial in run.trials()))
    groups = defaultdict(list)
    for row in pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist():
        if row["verdict"] != Verdict.DUPLICATE:  # a reward is of one completion: nothing came before it
            groups[row["group"]].append(row)
    assert sorted(map(len, groups.values())) == [1, 1, 3]
    for rows in groups.values():
        found = rewards(evaluator, *(row["completion"][0]["content"] for row in rows))
        for name, part in (("autotriton", "value"), ("tritonrl_plan", "plan"), ("tritonrl_code", "code")):
            values = [getattr(each, part) for each in found]
            assert values == pytest.approx([row[f"{name}_reward"] for row in rows], abs=1e-9)
            assert advantages(values) == pytest.approx([row[f"{name}_advantage"] for row in rows], abs=1e-6)
            assert len(rows) == 1 or any(advantages(values))


def test_the_evaluator_itself_rewards(evaluators: Callable, caplog: pytest.LogCaptureFixture) -> None:
    class Real:
        def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
            return (evaluators(TASK).evaluate(Candidate(text), seed=0, known={}) for text in sources)

    cheat = SEED.replace("    return y", "    return torch.sin(x)")
    texts = [block(text) for text in (SEED, SEED.replace("tl.sin", "tl.cos"), cheat, "def f(:\n")]
    found = TritonReward(evaluator=Real(), scheme="tritonrl")(texts)
    assert [each.verdict for each in found] == ["ok", "wrong", "rejected", "compile_error"]
    assert [each.value for each in found] == pytest.approx([1 + ALPHA, 0, 0, 0])
    assert ["at stage" in record.message for record in caplog.records] == [True]
    assert json.dumps(found[0].spans) and found[0].estimated


def test_a_service_rewards(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "service", workers=2) as server:
        with TritonReward("softmax", url=server.url, scheme="speedup") as reward:
            found = reward([block(source(number)) for number in range(8)])
        for number, each in enumerate(found):
            expected = InstantEvaluator().evaluate(Candidate(source(number)), seed=0, known={})
            assert (each.verdict, each.speedup) == (expected.verdict, expected.speedup)
            assert each.value == (expected.speedup or 0.0)
        with TritonReward("no-such", url=server.url) as reward, pytest.raises(ServiceError, match="404"):
            reward([block(source(0))])
        with pytest.raises(ConfigError, match="name of a task"):
            TritonReward(Path("softmax"), url=server.url)
