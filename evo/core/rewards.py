"""Computes rewards and advantages for training language models on evaluated answers.

`evo export --format grpo` and `evo.rewards` both use these formulas.  Speedups are over the baseline of the task: its
seed kernel, or PyTorch for a task without one (TritonRL's are over PyTorch).

- `autotriton` (AutoTriton, arXiv 2507.05687): 1 if the rules are kept and the outputs are right, else 0.
- `tritonrl` (TritonRL, arXiv 2510.17891): two rewards, each for its own tokens.  The code's get r_correct = syntax x
  rules x compiled x correct, the plan's r_speed = r_correct x speedup; in the loss the plan's tokens weigh ALPHA, the
  code's 1.
- The advantage of an answer is (r - mean) / (std + EPSILON) over its group, std with n - 1; 0 in a group of one, as in
  TRL's GRPOTrainer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evo.core.errors import ConfigError
from evo.core.records import STAGES, Verdict
from evo.core.text import did_you_mean

R = TypeVar("R")

ALPHA = 0.1  # TritonRL's choice
EPSILON = 1e-4  # TRL's; verl has 1e-6


@dataclass(frozen=True)
class Judged:
    """What rewards depend on: verdict and stage of an answer's candidate, and its speedup if it is right.

    The verdict is not INFRASTRUCTURE: an answer that the evaluator itself failed on has no reward.
    """

    verdict: Verdict
    stage: str  # one of STAGES
    speedup: float | None = None

    @property
    def syntax(self) -> bool:
        """Whether it holds a source that is Python; the gate's compile error is that of Python's parser."""
        return self.stage != "answer" and not (self.stage == "gate" and self.verdict is Verdict.COMPILE_ERROR)

    @property
    def rules(self) -> bool:
        """Whether it is Python and keeps the rules."""
        return self.syntax and self.verdict is not Verdict.REJECTED

    @property
    def compiled(self) -> bool:
        """Whether its kernels compiled."""
        return STAGES.index(self.stage) > STAGES.index("compile")

    @property
    def correct(self) -> bool:
        """Whether its outputs are right."""
        return self.verdict in (Verdict.OK, Verdict.DUPLICATE)

    @property
    def rewards(self) -> dict[str, float]:
        """The rewards `autotriton`, `tritonrl_plan` and `tritonrl_code`."""
        correct = float(self.syntax and self.rules and self.compiled and self.correct)
        return {
            "autotriton": float(self.rules and self.correct),
            "tritonrl_plan": correct * (self.speedup or 0.0),
            "tritonrl_code": correct,
        }


def mean_and_std(rewards: Sequence[float]) -> tuple[float, float]:
    """The mean of a group of at least two rewards, and its standard deviation with n - 1."""
    return statistics.fmean(rewards), statistics.stdev(rewards)


def advantage(reward: float, mean: float, std: float) -> float:
    """The advantage of an answer in a group with this mean and standard deviation."""
    return (reward - mean) / (std + EPSILON)


def advantages(rewards: Sequence[float]) -> list[float]:
    """The advantages of the answers of one group, in their order; 0 in a group of one."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean, std = mean_and_std(rewards)
    return [advantage(reward, mean, std) for reward in rewards]


def rewards_of(
    rewards: Callable[[Sequence[str]], Sequence[R]] | Mapping[str, Callable[[Sequence[str]], Sequence[R]]],
    tasks: Sequence[Any],
    texts: Sequence[str],
) -> list[R]:
    """Returns the rewards of texts, in their order.

    rewards: one function for all texts, whatever their tasks, or one for each task by its name.  Raises ConfigError if
    a task has none.
    """
    if not isinstance(rewards, Mapping):
        return list(rewards(texts))
    found: dict[int, R] = {}
    for task in dict.fromkeys(tasks):
        if task not in rewards:
            raise ConfigError(
                f"expected the name of a task among {', '.join(rewards)} in each row, got {task!r:.100}"
                f"{did_you_mean(str(task), rewards)}"
            )
        at = [i for i, each in enumerate(tasks) if each == task]
        found |= zip(at, rewards[task]([texts[i] for i in at]), strict=True)
    return [found[i] for i in range(len(texts))]


def completion_text(completion: Any) -> str:
    """Returns the text of a completion as trainers give it: itself, or that of its last message by the assistant."""
    if isinstance(completion, str):
        return completion
    content = next((m["content"] for m in reversed(completion) if m["role"] == "assistant"), "") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
