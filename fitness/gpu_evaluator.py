"""Judges candidates on a GPU: verified and timed by the runner, beside the seed kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evo.records import Candidate, Evaluation, Verdict
from fitness import estimate as model
from fitness.calls import CPU
from fitness.jobs import Limits
from fitness.pipeline import Evaluator, Facts, Judged
from fitness.runner import Report, Runner, Work
from fitness.stages import Stop
from fitness.target import Target
from fitness.task import Task
from fitness.work import cubins
from fitness.zygote import Zygote

# Of `fitness.device.DeviceFacts`: which GPU it is, and the ceilings that times are compared with.
_FACTS = ("uuid", "driver", "dram_bytes_per_s", "copy_bytes_per_s", "matmul_flops")


class GpuEvaluator(Evaluator):
    """Measures all cases at the target's sizes on one GPU.  The estimate serves `screen` alone."""

    judging = "time"

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        device: int = 0,
        limits: Limits | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """`device`: CUDA index of the GPU; a `zygote` that is given is shared with others and not closed here."""
        super().__init__(task, target, limits, True, zygote)
        self._runner = Runner(task.folder, device=device, wall_s=self.limits.wall_s)
        self._gpu: Mapping[str, Any] = {}

    def prepare(self) -> Evaluation:
        """As of every evaluator.  Raises EvoError where the GPU cannot be used."""
        self._gpu = self._runner.facts
        return super().prepare()

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """As of every evaluator.  The seed is estimated when this is first asked for: runs that measure seldom do."""
        if self._baseline is None:
            seed = self._facts(self.task.seed_source)
            with suppress(Stop):
                self._baseline = None if isinstance(seed, Stop) else self._estimates(self.task.seed_source, seed)
        return super().screen(sources) if self._baseline is not None else [None] * len(sources)

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and protections of this evaluator, and, after `prepare`, which GPU it is and its ceilings."""
        gpu = {"gpu": self._gpu["name"], **{key: self._gpu[key] for key in _FACTS}} if self._gpu else {}
        return MappingProxyType({**super().environment, **gpu})

    def close(self) -> None:
        self._runner.close()
        super().close()

    # --- what differs ------------------------------------------------------------------------------------------------

    def _recorded(self) -> list[str]:
        return [name for name in self._calls.described() if not name.endswith(CPU)]

    def _compiled(self) -> list[str]:
        return self._recorded()

    def _stages(self) -> Sequence[Callable[[str, Facts, Path], None]]:
        return (self._gate, self._record, self._compile, self._screen)

    def _compile(self, source: str, facts: Facts, scratch: Path) -> None:
        super()._compile(source, facts, scratch)
        facts.cubins = cubins(facts.builds, scratch)

    def _estimates(self, source: str, facts: Facts) -> dict[str, model.Estimate]:
        if not facts.estimates:
            # Of a copy, which other threads do not see until it is whole.
            trial = dataclasses.replace(facts, choices={}, estimates={})
            with self._scratch() as scratch:
                self._estimate(source, trial, scratch)
            facts.estimates = trial.estimates
        return facts.estimates

    def _judge_seed(self, seed: Candidate, facts: Facts) -> Judged:
        return _judged(self._runner.prepare(_work(facts)))

    def _judge(self, candidate: Candidate, facts: Facts, key: str) -> Judged:
        return _judged(self._runner.evaluate(_work(facts), seed=key))

    def _environment(self, facts: Facts) -> dict[str, Any]:
        return {**super()._environment(facts), "gpu": self._gpu.get("name", "")}


def _work(facts: Facts) -> Work:
    return Work(facts.plans, facts.builds, facts.cubins)


def _judged(report: Report) -> Judged:
    """Raises Stop unless the report says ok."""
    if report.verdict is not Verdict.OK:
        raise Stop(report.stage, report.verdict, report.message)
    assert report.check is not None  # OK reports have one
    return Judged(report.check, report.timings, report.choices, report.note)
