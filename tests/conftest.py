"""What several test modules share: evaluators and zygotes are warm processes, so few are started in a session."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.warm_zygotes import keep_warm

# Files that take longest, the longest first.  Begun last, one of them would keep the other processes waiting.
LONGEST = (
    "cpu_backend", "hacks", "pool", "long_loops", "examples_scripts", "bench", "suites_tritonbench",
    "suites_kernelbench", "reference_runs", "suites_tritonbench_t", "reference_search", "launch_bundle",
    "operators_rewrite", "ablate", "training", "serve", "task_by_model", "campaign_cluster", "delegation", "plugins",
    "campaign_halves", "zygote", "vacuous", "draft", "sampled", "api", "tasks", "kill",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.enable()
    gc.freeze()


def pytest_configure() -> None:
    """A shell starts what it leaves in the background without Ctrl-C; the processes that tests interrupt need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()


@pytest.fixture(scope="session", autouse=True)
def warm_zygotes() -> Iterator[None]:
    """Zygotes of this process stay warm from test to test (`tests/warm_zygotes.py`)."""
    warm = keep_warm()
    yield
    warm.close()


@pytest.fixture(scope="session")
def of_seeds() -> dict[str, Any]:
    """By task that `evaluators` was asked for, the evaluation of its seed kernel that prepared the evaluator."""
    return {}


@pytest.fixture(scope="session")
def evaluators(of_seeds: dict[str, Any]) -> Iterator[Callable]:
    """`evaluators(task_name, use_gate=True, cpu_s=30)`: a prepared CpuEvaluator, kept for the session.

    What is asked of one holds until it is asked for again: to prepare another would take seconds.
    """
    from fitness.cpu_backend import CpuEvaluator
    from fitness.frontend.target import get_target
    from fitness.sandbox.jobs import Limits
    from fitness.sandbox.zygote import Zygote
    from fitness.tasks.task import load_task

    zygote = Zygote("sm_90")
    made: dict[str, CpuEvaluator] = {}

    def get(name: str, *, use_gate: bool = True, cpu_s: int = 30) -> CpuEvaluator:
        if name not in made:
            made[name] = CpuEvaluator(load_task(name), get_target("sm_90"), zygote=zygote)
            of_seeds[name] = made[name].prepare()
        front_end, backend = made[name]._front_end, made[name]._backend
        front_end.use_gate = use_gate
        front_end.limits = backend.limits = Limits(cpu_s=cpu_s, wall_s=60)
        return made[name]

    yield get
    for evaluator in made.values():
        evaluator.close()
    zygote.close()
