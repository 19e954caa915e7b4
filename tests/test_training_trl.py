"""analysis.training with TRL and a tiny random model: `make test-published` (`make train-demo` runs each recipe)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks import tiny_model
from analysis.export import export_training
from analysis.training import tokens
from analysis.training.data import read_rows
from evo.api import Evaluator
from evo.core.errors import ConfigError
from evo.core.records import Verdict
from evo.rewards import Reward
from operators.registry import LLM_OPERATORS

pytest.importorskip("trl", reason="needs TRL: make test-published")
pytestmark = pytest.mark.published

from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from analysis.training import demo, hierarchical  # noqa: E402
from analysis.training.watched import Step, WatchedHierarchical  # noqa: E402

GROUP = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.make(folder)
    return str(folder)


class Planned:
    """A reward by the number of an answer: the plan is its first half, and the second answer is not known."""

    def __init__(self, best: float) -> None:
        self.best = best
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[Reward]:
        self.texts += texts
        return [self._of(number, text) for number, text in enumerate(texts)]

    def _of(self, number: int, text: str) -> Reward:
        if number == 1:
            return Reward(None, Verdict.INFRASTRUCTURE, None, False, None, None)
        spans = {"plan": (0, len(text) // 2), "code": (len(text) // 2, len(text))}
        return Reward(1.0, Verdict.OK, 1.0, True, self.best / (number + 1), float(number != 2), spans)


def trained(model: str, rewards: Any, tasks: Sequence[str], folder: Path, **settings: Any) -> list[Step]:
    """The steps of a training on a prompt for each task; the model writes all completions itself."""
    args = demo.grpo_config(folder, "grpo")
    rows = [{"prompt": [{"role": "user", "content": f"write {task}"}], "task": task} for task in tasks]
    trainer = WatchedHierarchical(model, rewards, args, train_dataset=Dataset.from_list(rows), **settings)
    trainer.stored = {str(row["prompt"]): [] for row in rows}
    demo.train(trainer)
    return trainer.steps


def test_each_task_has_its_reward_and_each_token_its_part(model: str, tmp_path: Path) -> None:
    rewards = {"one": Planned(4.0), "two": Planned(40.0)}
    steps = trained(model, rewards, ["one", "two"], tmp_path, alpha=0.5)
    tokenizer = AutoTokenizer.from_pretrained(model)
    decode = functools.partial(tokenizer.decode, skip_special_tokens=True)
    for step, reward in zip(steps, rewards.values(), strict=True):
        scored = reward(reward.texts[:GROUP])
        plan, code = (
            tokens.group_advantages([math.nan if v is None else v for v in values], GROUP)
            for values in ([r.plan for r in scored], [r.code for r in scored])
        )
        assert plan[1] == code[1] == 0.0 and plan[0] > 1 and len(set(plan)) == GROUP
        for number, (sampled, found) in enumerate(
            zip(step.completions, step.batch["advantages"].tolist(), strict=True)
        ):
            assert decode(sampled) == reward.texts[number]
            half = len(reward.texts[number]) // 2 if number != 1 else 0
            # One token after the other, in place of a binary search.
            of_plan = [len(decode(sampled[: i + 1])) <= half for i in range(len(sampled))]
            weights = [0.5 * plan[number] if of else code[number] for of in of_plan]
            assert found[: len(sampled)] == pytest.approx(weights, rel=1e-6, abs=1e-9)
            assert number == 1 or 0 < sum(of_plan) < len(sampled)


def test_settings_that_change_the_formula_are_refused(model: str, tmp_path: Path) -> None:
    for settings in ({"alpha": -0.1}, {"alpha": math.nan}):
        with pytest.raises(ConfigError, match="alpha: expected a weight of at least 0"):
            trained(model, Planned(1.0), ["one"], tmp_path, **settings)
    for name, value in (("scale_rewards", "none"), ("reward_weights", [1.0, 1.0])):
        args = demo.grpo_config(tmp_path, "grpo")
        setattr(args, name, value)
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            hierarchical.HierarchicalGRPOTrainer(model, Planned(1.0), args)


def test_a_row_of_a_task_without_a_reward_is_an_error(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected the name of a task among one in each row, got 'two'"):
        trained(model, {"one": Planned(1.0)}, ["two"], tmp_path)


FAULTS = {
    "plan_length": lambda *given: tokens.plan_length(*given) + 1,
    "group_advantages": lambda rewards, size: [r - sum(rewards) / len(rewards) for r in rewards],
    "token_advantages": lambda plan, code, count, length, alpha: tokens.token_advantages(
        plan, code, count, length, alpha * 1.01
    ),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    out = tmp_path_factory.mktemp("grpo") / "out"
    export_training([demo.RUN], out, "grpo", operators=LLM_OPERATORS)
    return list(read_rows(out / "grpo.jsonl"))


@pytest.fixture(scope="module")
def evaluator() -> Any:
    with Evaluator(demo.TASK, gpus="none") as evaluator:
        yield evaluator


@pytest.mark.parametrize("fault", FAULTS)
def test_the_demo_finds_a_wrong_formula(
    fault: str, model: str, rows: list[Any], evaluator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchical, fault, FAULTS[fault])
    with pytest.raises(SystemExit, match="weights of tokens: got"):
        demo.run_hierarchical(model, rows, evaluator, tmp_path)


def test_the_demo_finds_a_wrong_loss(model: str, rows: list[Any], evaluator: Any, tmp_path: Path, monkeypatch) -> None:
    loss = demo.WatchedHierarchical.compute_loss
    monkeypatch.setattr(demo.WatchedHierarchical, "compute_loss", lambda *given, **named: loss(*given, **named) * 1.001)
    with pytest.raises(SystemExit, match="loss: got"):
        demo.run_hierarchical(model, rows, evaluator, tmp_path)
