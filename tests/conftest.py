"""What several test modules share: evaluators are warm processes, so each is made once a session."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest


def pytest_configure() -> None:
    """A shell starts what it leaves in the background without Ctrl-C; the processes that tests interrupt need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def evaluators() -> Iterator[Callable]:
    """`evaluators(task_name, use_gate=True)`: a prepared CpuEvaluator, kept for the session."""
    from fitness.compilation.target import get_target
    from fitness.evaluator import CpuEvaluator
    from fitness.sandbox.jobs import Limits
    from fitness.sandbox.zygote import Zygote
    from fitness.task import load_task

    zygote = Zygote("sm_90")
    made: dict = {}

    def get(name: str, *, use_gate: bool = True) -> CpuEvaluator:
        if (name, use_gate) not in made:
            limits = Limits(wall_s=20, cpu_s=8)  # enough for every honest candidate here, short for endless ones
            task, target = load_task(name), get_target("sm_90")
            evaluator = CpuEvaluator(task, target, limits=limits, use_gate=use_gate, zygote=zygote)
            evaluator.prepare()
            made[name, use_gate] = evaluator
        return made[name, use_gate]

    yield get
    for evaluator in made.values():
        evaluator.close()
    zygote.close()
