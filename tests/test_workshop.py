"""fitness.workshop."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

from evo.records import Candidate, Check, Timing, Verdict
from fitness.compilation.target import get_target
from fitness.facts import Facts
from fitness.gpu.runner import Report
from fitness.gpu_evaluator import GpuEvaluator
from fitness.task import load_task
from fitness.workshop import Workshop

AS_FAST = Timing("square", (1.0,), (1.0,), 1.0, (0.9, 1.1), estimated=False)


class Busy:
    """A runner that notes how many are asked at the same time."""

    now = most = asked = 0
    _count = threading.Lock()

    def evaluate(self, work: Any, *, seed: str) -> Report:
        with Busy._count:
            Busy.now += 1
            Busy.asked += 1
            Busy.most = max(Busy.most, Busy.now)
        time.sleep(0.002)  # long enough for another thread to come in, if it may
        with Busy._count:
            Busy.now -= 1
        return Report(Verdict.OK, "done", check=Check(1, "square", 0.1, 1.0), timings=(AS_FAST,))

    def close(self) -> None:
        pass


def test_runners_of_several_tasks_take_turns() -> None:
    with closing(Workshop(get_target("sm_90"), measured=True)) as workshop:
        evaluators = [workshop.open(load_task(name)) for name in ("softmax", "rotary", "vector_sin")]
        judges: list[Any] = [e._judge for e in evaluators]
        assert all(isinstance(e, GpuEvaluator) for e in evaluators)
        for judge in judges:
            judge._runner, judge._facts = Busy(), {"uuid": "GPU-0"}
        threads = [
            threading.Thread(target=lambda judge=judge: [judge.judge("", Facts(), "0") for _ in range(10)])
            for judge in judges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (Busy.asked, Busy.most) == (30, 1)
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
