"""Judges candidates on a GPU: verified and timed by the runner, beside the seed kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from evo.records import Verdict
from fitness.facts import Facts, Recorder
from fitness.jobs import Limits
from fitness.ncu import Counters, counters
from fitness.pipeline import Evaluator, Judged
from fitness.runner import Report, Runner, Work
from fitness.stages import Stop
from fitness.target import Target
from fitness.task import Task
from fitness.zygote import Zygote

# Of `fitness.device.DeviceFacts`: which GPU it is, and the ceilings that times are compared with.
_FACTS = ("uuid", "driver", "dram_bytes_per_s", "copy_bytes_per_s", "matmul_flops")


class GpuJudge:
    """Measures all cases at the target's sizes on one GPU."""

    stage = "time"

    def __init__(
        self,
        task: Task,
        *,
        device: int = 0,
        limits: Limits | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`device`: CUDA index of the GPU; `turn`: entered while it is used, where others use it too."""
        self._turn = turn or nullcontext()
        self._task, self._device = task, device
        self._runner = Runner(task.folder, device=device, wall_s=(limits or Limits()).wall_s)
        self._facts: Mapping[str, Any] = {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """Which GPU it is and its ceilings; empty before `prepare`."""
        return {"gpu": self._facts["name"], **{key: self._facts[key] for key in _FACTS}} if self._facts else {}

    def prepare(self, seed: str, facts: Facts) -> Judged:
        """As of every judge."""
        with self._turn:  # the first question to the runner measures the ceilings
            self._facts = self._runner.facts
            return _judged(self._runner.prepare(_work(facts)))

    def judge(self, source: str, facts: Facts, key: str) -> Judged:
        """As of every judge."""
        with self._turn:
            return _judged(self._runner.evaluate(_work(facts), seed=key))

    def counters(self, work: Work, case: str) -> Counters:
        """Hardware counters of the launches of one case, read while nothing else is judged.  Raises NoCounters."""
        with self._turn, self._runner.idle():
            return counters(self._task.folder, work, case, device=self._device)

    def close(self) -> None:
        self._runner.close()


class GpuEvaluator(Evaluator):
    """Measures all cases at the target's sizes on one GPU.  The estimate serves `screen` alone."""

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        device: int = 0,
        limits: Limits | None = None,
        zygote: Zygote | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`device`, `turn`: as of `GpuJudge`; a `zygote` that is given is shared with others and not closed here."""
        recorder = Recorder(task, target, measured=True, limits=limits, zygote=zygote)
        super().__init__(task, target, recorder, GpuJudge(task, device=device, limits=limits, turn=turn))
        self._task, self._device = task, device


def _work(facts: Facts) -> Work:
    return Work(facts.plans, facts.builds, facts.cubins)


def _judged(report: Report) -> Judged:
    """Raises Stop unless the report says ok."""
    if report.verdict is not Verdict.OK:
        raise Stop(report.stage, report.verdict, report.message)
    assert report.check is not None  # OK reports have one
    return Judged(report.check, report.timings, report.choices, report.note)
