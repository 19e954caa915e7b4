"""Evaluates candidates on a GPU: the runner verifies them and times them beside the seed kernel."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import CERTIFICATE, PASSED, Certificate, Evaluation, Fitness, Verdict, fitness_of
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.certify.certify import Certifier
from fitness.cuda.gpus import find_gpus, measuring
from fitness.evaluator import BackendResult, Look, TaskEvaluator, chosen_configs
from fitness.frontend.freeze import freeze
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target, sm_name
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.profile.ncu import CounterReader, Counters
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task

# Fields of `fitness.cuda.device.DeviceFacts`: which GPU it is, and the ceilings that times are compared with.
_FACTS = ("uuid", "driver", "dram_bytes_per_s", "copy_bytes_per_s", "matmul_flops")


class SharedGpu:
    """The state that backends on one GPU share.  Close it after them."""

    def __init__(self, device: int = 0) -> None:
        """Starts nothing yet.  device: CUDA index of the GPU."""
        self.device = device
        self._asking = threading.Lock()
        self._counters: CounterReader | None = None
        self._closed = False
        self._facts: Mapping[str, Any] = {}
        self._eager: Zygote | None = None

    def start(self, runner: Runner) -> Mapping[str, Any]:
        """Starts the runner's process; returns the properties of the GPU (`fitness.cuda.device.DeviceFacts` as a dict).

        The first process measures the ceilings among them; later ones get them, and only load what they need.
        """
        with self._asking:
            if not self._facts:
                self._facts = runner.facts
                return self._facts
        return runner.start(self._facts)

    def eager(self) -> Zygote:
        """Returns the zygote whose children run candidates eagerly.  It starts in the background, at the first call."""
        with self._asking:
            if self._eager is None:
                self._eager = Zygote(sm_name(self._facts["capability"]), ("eager",), self._facts["uuid"])
            return self._eager

    def counters(self) -> CounterReader:
        """Returns what reads hardware counters on this GPU.  Raises EvoError after `close`."""
        with self._asking:
            if self._closed:
                raise EvoError("the GPU's backends are closed: open another evaluator")
            if self._counters is None:
                self._counters = CounterReader(self._facts["uuid"])
            return self._counters

    def close(self) -> None:
        with self._asking:
            self._closed = True
        for opened in (self._eager, self._counters):
            if opened is not None:
                opened.close()


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
        profiles: bool = False,
    ) -> None:
        """Starts nothing yet.

        device: CUDA index of the GPU; gpu: instead, if others use it too; it is not closed here.  profiles: whether
        counters will be asked for soon.
        """
        self._own_gpu, self._profiles = gpu is None, profiles
        self._gpu = gpu or SharedGpu(device)
        self._task, self._wall_s = task, (limits or Limits()).wall_s
        settings = task.run_settings
        self._runner = Runner(task.folder, device=self._gpu.device, wall_s=self._wall_s, settings=settings)
        self._facts: Mapping[str, Any] = {}
        self._certifier: Certifier | None = None  # after `prepare`, which finds out which GPU it is
        self._champion = 1.0  # the best certified speedup so far, the seed's at first
        self._crowning = threading.Lock()  # one certificate at a time: a better one may make the next needless

    @property
    def environment(self) -> Mapping[str, Any]:
        """Returns which GPU it is and its ceilings; empty before `prepare`."""
        return {"gpu": self._facts["name"], **{key: self._facts[key] for key in _FACTS}} if self._facts else {}

    def start(self) -> None:
        """Starts the runner's process in the background: it takes seconds.  `prepare` waits for it.  Then what reads
        counters, if it was said that they will be asked for.
        """

        def started() -> None:
            with contextlib.suppress(EvoError):  # `prepare` tries again, and says what is wrong
                self._gpu.start(self._runner)
                if self._profiles:
                    self._gpu.counters().start()

        threading.Thread(target=started, name="start-runner", daemon=True).start()

    def prepare(self, seed: str, compiled: CompiledCandidate) -> BackendResult:
        """Verifies the seed on the GPU and makes it the baseline, or times PyTorch if the task has no seed.

        Raises Stop, and EvoError without a usable GPU.
        """
        self._facts = self._gpu.start(self._runner)
        if self._certifier is None:
            self._certifier = Certifier(self._task, self._runner, self._gpu.eager())
        return _result_of(self._runner.prepare(compiled.bundle()))

    def look(self, source: str, compiled: CompiledCandidate, key: str) -> Look:
        """Verifies a candidate once on each tune case and times it coarsely.  Raises Stop with the verdict."""
        result = _result_of(self._runner.look(compiled.bundle(cases=compiled.builds), seed=key))
        return Look(result.timings, result.seconds)

    def evaluate(self, source: str, compiled: CompiledCandidate, key: str) -> BackendResult:
        """Verifies and times a candidate.  A new champion is also certified.  Raises Stop with the verdict."""
        result = _result_of(self._runner.evaluate(compiled.bundle(), seed=key))
        result = replace(result, environment={"uuid": self._facts["uuid"]})  # the GPU on which it was compared
        fitness = fitness_of(result.timings)
        return self._certified(source, compiled, result, fitness, key) if self._wins(fitness) else result

    def _wins(self, fitness: Fitness) -> bool:
        """Returns whether it is faster than what is certified, beyond its confidence interval."""
        return fitness.ci95[0] > self._champion

    def _certified(
        self, source: str, compiled: CompiledCandidate, result: BackendResult, fitness: Fitness, key: str
    ) -> BackendResult:
        """Returns the result with what its certificate says.  Raises Stop if the candidate fails."""
        frozen = freeze(source, chosen_configs(compiled, result.choices)) or source
        bundle = compiled.bundle(result.choices)
        with self._crowning:
            if not self._wins(fitness):  # a better one was certified while it waited
                return result
            begin = time.perf_counter()
            certificate = self._prepared().quick(frozen, bundle, seed=f"new:{key}")
            spent = time.perf_counter() - begin
            if certificate.verdict in (Verdict.OK, Verdict.INFRASTRUCTURE):
                self._champion = fitness.speedup
        seconds = {**result.seconds, "certify": spent}
        if certificate.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE):
            message = f"run eagerly, {certificate.message}"
            raise Stop("certify", certificate.verdict, message, seconds=seconds)
        said = PASSED if certificate.verdict is Verdict.OK else f"not run: {certificate.message}"
        environment = {**result.environment, CERTIFICATE: said, "certificate_s": round(spent, 3)}
        return replace(result, environment=environment, seconds=seconds)

    def certify(self, source: str, key: str) -> Certificate:
        """Returns the full certificate.  Others may use the GPU while it compiles and while its processes start."""
        return self._prepared().full(source, seed=key)

    def _prepared(self) -> Certifier:
        if self._certifier is None:
            raise EvoError("the backend knows no GPU yet: call prepare() first")
        return self._certifier

    def counters(self, bundle: LaunchBundle, case: str) -> Counters:
        """Returns hardware counters, read one case at a time while nothing else runs on the GPU.  Raises NoCounters."""
        return self._gpu.counters().read(self._task.folder, bundle, case)

    def close(self) -> None:
        self._runner.close()
        if self._certifier is not None:
            self._certifier.close()
        if self._own_gpu:
            self._gpu.close()


class GpuEvaluator(TaskEvaluator):
    """Measures all cases at the target's sizes on one GPU. The estimate serves `screen` alone."""

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
        profiles: bool = False,
    ) -> None:
        """Makes a front end and a GPU backend.

        `target` gets the measured values of that GPU; `prepare` fails without one.

        device, gpu, profiles: see `GpuBackend`; recording: other limits for the work before a candidate is on the GPU.
        A `zygote` that is given is shared with others and not closed here.
        """
        if not find_gpus(target).problem:
            target = measuring(target, gpu.device if gpu else device)
        front_end = FrontEnd(task, target, measured=True, limits=recording or limits, zygote=zygote)
        backend = GpuBackend(task, device=device, limits=limits, gpu=gpu, profiles=profiles)
        super().__init__(task, target, front_end, backend)
        self._start = backend.start

    def prepare(self) -> Evaluation:
        self._start()  # while the seed kernel is recorded and compiled
        return super().prepare()


def _result_of(report: Report) -> BackendResult:
    """Returns the result that the report tells.  Raises Stop unless the report says ok."""
    seconds = {GpuBackend.stage: report.seconds}
    if report.verdict is not Verdict.OK:
        raise Stop(report.stage, report.verdict, report.message, seconds=seconds)
    assert report.check is not None  # OK reports have one
    return BackendResult(report.check, report.timings, report.choices, report.note, seconds=seconds)
