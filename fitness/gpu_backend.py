"""Judges candidates on a GPU: verified and timed by the runner, beside the seed kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import CERTIFICATE, PASSED, Certificate, Fitness, Verdict, fitness_of
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.certify.certify import Certifier
from fitness.cuda.gpus import find_gpus, measuring
from fitness.evaluator import BackendResult, Evaluator, chosen_configs
from fitness.frontend.freeze import freeze
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.gpu.sharing import SharedGpu
from fitness.profile.ncu import Counters, counters
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task

# Of `fitness.cuda.device.DeviceFacts`: which GPU it is, and the ceilings that times are compared with.
_FACTS = ("uuid", "driver", "dram_bytes_per_s", "copy_bytes_per_s", "matmul_flops")


class GpuBackend:
    """Measures all cases at the target's sizes on one GPU."""

    stage = "time"

    def __init__(
        self,
        task: Task,
        *,
        device: int = 0,
        limits: Limits | None = None,
        gpu: SharedGpu | None = None,
    ) -> None:
        """`device`: CUDA index of the GPU; or `gpu`, where others use it too, which is not closed here."""
        self._own_gpu = gpu is None
        self._gpu = gpu or SharedGpu(device)
        self._task, self._wall_s = task, (limits or Limits()).wall_s
        self._runner = Runner(task.folder, device=self._gpu.device, wall_s=self._wall_s)
        self._facts: Mapping[str, Any] = {}
        self._certifier: Certifier | None = None  # after `prepare`, which finds out which GPU it is
        self._champion = 1.0  # the best certified speedup so far, the seed's at first
        self._crowning = threading.Lock()  # one certificate at a time: the next may not be wanted any more

    @property
    def environment(self) -> Mapping[str, Any]:
        """Which GPU it is and its ceilings; empty before `prepare`."""
        return {"gpu": self._facts["name"], **{key: self._facts[key] for key in _FACTS}} if self._facts else {}

    def prepare(self, seed: str, facts: CompiledCandidate) -> BackendResult:
        """As of every judge."""
        self._facts = self._gpu.start(self._runner)
        if self._certifier is None:
            self._certifier = Certifier(self._task, self._runner, self._gpu.eager())
        return _judged(self._runner.prepare(_work(facts)))

    def judge(self, source: str, facts: CompiledCandidate, key: str) -> BackendResult:
        """As of every judge.  A new champion must also do eagerly what it was measured for."""
        judged = _judged(self._runner.evaluate(_work(facts), seed=key))
        judged = replace(judged, environment={"uuid": self._facts["uuid"]})  # the GPU on which it was compared
        fitness = fitness_of(judged.timings)
        return self._certified(source, facts, judged, fitness, key) if self._wins(fitness) else judged

    def _wins(self, fitness: Fitness) -> bool:
        """Whether it is faster than what is certified: beyond its interval, for a difference within it is none."""
        return fitness.ci95[0] > self._champion

    def _certified(
        self, source: str, facts: CompiledCandidate, judged: BackendResult, fitness: Fitness, key: str
    ) -> BackendResult:
        """`judged` with what its certificate says.  Raises Stop where the candidate fails."""
        frozen = freeze(source, chosen_configs(facts, judged.choices)) or source
        work = replace(_work(facts), choices=judged.choices)
        with self._crowning:
            if not self._wins(fitness):  # any more: a better one was certified before its turn came
                return judged
            begin = time.perf_counter()
            certificate = self._prepared().quick(frozen, work, seed=f"new:{key}")
            spent = time.perf_counter() - begin
            if certificate.verdict in (Verdict.OK, Verdict.INFRASTRUCTURE):
                self._champion = fitness.speedup
        seconds = {**judged.seconds, "certify": spent}
        if certificate.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE):
            message = f"run eagerly, {certificate.message}"
            raise Stop("certify", certificate.verdict, message, seconds=seconds)
        said = PASSED if certificate.verdict is Verdict.OK else f"not run: {certificate.message}"
        environment = {**judged.environment, CERTIFICATE: said, "certificate_s": round(spent, 3)}
        return replace(judged, environment=environment, seconds=seconds)

    def certify(self, source: str, key: str) -> Certificate:
        """As of every judge: the full certificate."""
        with self._runner.idle():
            return self._prepared().full(source, seed=key)

    def _prepared(self) -> Certifier:
        if self._certifier is None:
            raise EvoError("the judge knows no GPU yet: call prepare() first")
        return self._certifier

    def counters(self, work: LaunchBundle, case: str) -> Counters:
        """As of every judge: read while nothing else is judged."""
        with self._runner.idle():
            return counters(self._task.folder, work, case, device=self._gpu.device)

    def close(self) -> None:
        self._runner.close()
        if self._certifier is not None:
            self._certifier.close()
        if self._own_gpu:
            self._gpu.close()


class GpuEvaluator(Evaluator):
    """Measures all cases at the target's sizes on one GPU.  The estimate serves `screen` alone."""

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        device: int = 0,
        limits: Limits | None = None,
        recording: Limits | None = None,
        zygote: Zygote | None = None,
        gpu: SharedGpu | None = None,
    ) -> None:
        """`target` gets the facts of that GPU, if there is one; `prepare` says if there is none.

        `device`, `gpu`: see `GpuBackend`; `recording`: other limits for what is done before a candidate is on the GPU.
        A `zygote` that is given is shared with others and not closed here.
        """
        if not find_gpus(target).problem:
            target = measuring(target, gpu.device if gpu else device)
        recorder = FrontEnd(task, target, measured=True, limits=recording or limits, zygote=zygote)
        super().__init__(task, target, recorder, GpuBackend(task, device=device, limits=limits, gpu=gpu))


def _work(facts: CompiledCandidate) -> LaunchBundle:
    return LaunchBundle(facts.plans, facts.builds, facts.cubins)


def _judged(report: Report) -> BackendResult:
    """Raises Stop unless the report says ok."""
    seconds = {GpuBackend.stage: report.seconds}
    if report.verdict is not Verdict.OK:
        raise Stop(report.stage, report.verdict, report.message, seconds=seconds)
    assert report.check is not None  # OK reports have one
    return BackendResult(report.check, report.timings, report.choices, report.note, seconds=seconds)
