"""The command line with an instant evaluator: `python -m tests.cli_support SLEEP_S ARGUMENT ...` is evo with one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import evo.cli.main
import evo.core.versions
import operators.registry
from analysis.benchmarks.instant import SEED_SOURCE, score
from evo import api
from evo.core.errors import TaskError
from evo.core.records import Case
from evo.search import assemble, evaluators
from evo.search.strategies import STRATEGIES
from fitness.tasks.task import Task
from tests.engine_support import ALL_OPERATORS, MeasuringEvaluator

LOG = Path("evaluated.log")  # written by slow evaluators
NO_GPU = SimpleNamespace(count=0, name="", problem="torch sees no CUDA GPU")
BROKEN = "broken"  # a task whose seed is wrong


class CliEvaluator(MeasuringEvaluator):
    """Notes whether it was closed."""

    closed = False
    device = ""  # it was opened for

    def close(self) -> None:
        self.closed = True


class BrokenEvaluator(CliEvaluator):
    def prepare(self) -> Any:
        raise TaskError("task broken: expected a right seed kernel, got verdict wrong; mend kernel.py")


def load(name: str, *, expected: str = "") -> Any:
    cases = (Case("square", {"M": 64}), Case("odd", {"M": 7}, role="holdout"))
    return Task("entry", cases, lambda *_: (), lambda: None, SEED_SOURCE, name=Path(name).name, hash="hash")


def install(setattr_: Callable[[Any, str, Any], None], sleep_s: float = 0.0) -> list[CliEvaluator]:
    """Puts the instant parts in place of the real ones; the evaluators that are opened, as they are."""
    opened: list[CliEvaluator] = []

    def open_evaluator(task: Any, target: str, device: str, profiles: bool = False) -> CliEvaluator:
        opened.append(BrokenEvaluator() if task.name == BROKEN else CliEvaluator(sleep_s, LOG if sleep_s else None))
        opened[-1].device = device
        return opened[-1]

    def open_factory(target: str, device: str, limits: Any = None) -> Any:
        return SimpleNamespace(open=lambda task: open_evaluator(task, target, device), close=lambda: None)

    setattr_(api, "load_task", load)
    setattr_(evaluators, "open_evaluator", open_evaluator)
    setattr_(evaluators, "open_factory", open_factory)
    setattr_(evaluators, "find_gpus", lambda target: NO_GPU)
    setattr_(assemble, "scorer", lambda: score)
    setattr_(evo.core.versions, "versions", lambda: {"evo": "1"})  # editing the code meanwhile must not fail a test
    setattr_(evo.core.versions, "own_versions", lambda: {"evo": "1"})
    setattr_(operators.registry, "OPERATORS", ALL_OPERATORS)
    setattr_(operators.registry, "LLM_OPERATORS", {})  # one of those has the name of one of these
    for strategy in STRATEGIES.values():
        setattr_(strategy, "operators", tuple(ALL_OPERATORS))
    return opened


if __name__ == "__main__":
    install(setattr, float(sys.argv[1]))
    sys.exit(evo.cli.main.main(sys.argv[2:]))
