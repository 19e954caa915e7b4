"""fitness.workshop."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any, ClassVar

import pytest

from evo.records import Candidate, Check, Timing, Verdict
from fitness.compilation.target import get_target
from fitness.facts import Facts
from fitness.gpu import runner
from fitness.gpu.runner import Report, Work
from fitness.gpu.turn import ALONE
from fitness.gpu_evaluator import GpuEvaluator
from fitness.task import load_task
from fitness.workshop import Workshop

FACTS = {"uuid": "GPU-0", "capability": (9, 0), "name": "H200"}
AS_FAST = Timing("square", (1.0,), (1.0,), 1.0, (0.9, 1.1), estimated=False)


class Busy:
    """The process of a runner, as its owner sees it: verifies, asks to be alone, times.  Notes who does so together."""

    verifying = timing = 0
    together: ClassVar[set[str]] = set()
    count = threading.Lock()

    def __init__(self, command: Any) -> None:
        pass

    def ask(self, request: Any, wall_s: float) -> Any:
        if request == ("facts",):
            return FACTS
        with Busy.count:
            if request == ALONE:
                Busy.timing += 1
            else:
                Busy.verifying += 1
            Busy.together.add(f"{Busy.verifying} verify, {Busy.timing} time")
        time.sleep(0.005)  # long enough for another thread to come in, if it may
        with Busy.count:
            if request == ALONE:
                Busy.timing -= 1
                return Report(Verdict.OK, "done", check=Check(1, "square", 0.1, 1.0), timings=(AS_FAST,))
            Busy.verifying -= 1
            return ALONE

    def stop(self) -> None:
        pass

    kill = stop


def test_runners_of_several_tasks_verify_together_and_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_Process", Busy)
    with closing(Workshop(get_target("sm_90"), measured=True)) as workshop:
        evaluators = [workshop.open(load_task(name)) for name in ("softmax", "rotary", "vector_sin")]
        judges: list[Any] = [e._judge for e in evaluators]
        assert all(isinstance(e, GpuEvaluator) for e in evaluators)
        for judge in judges:
            judge._facts = FACTS
            assert judge._runner.prepare(Work({}, {}, {})).verdict is Verdict.OK
        Busy.together = set()
        threads = [
            threading.Thread(target=lambda judge=judge: [judge.judge("", Facts(), "0") for _ in range(10)])
            for judge in judges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Busy.together - {"2 verify, 0 time", "3 verify, 0 time"} == {"1 verify, 0 time", "0 verify, 1 time"}
        assert len(Busy.together) > 2
        for evaluator in evaluators:
            evaluator.close()


def test_tasks_side_by_side_are_judged_by_one_zygote() -> None:
    with closing(Workshop(get_target("sm_90"), measured=False)) as workshop:
        evaluators = [workshop.open(load_task(name)) for name in ("vector_sin", "softmax")]
        first = [evaluator.prepare() for evaluator in evaluators]
        assert {e.verdict for e in first} == {Verdict.OK}
        evaluators[0].close()  # the other one goes on
        seed = Candidate(evaluators[1].task.seed_source)
        assert evaluators[1].evaluate(seed, seed=1, known={}).timings == first[1].timings
        evaluators[1].close()
