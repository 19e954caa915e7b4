"""Evaluates a candidate: front end, backend, and an Evaluation made of what they find.

The front end (`fitness/candidate.py`) turns a source into a CompiledCandidate.  A backend says whether it is right and
how fast: `fitness/cpu_backend.py` without a GPU, `fitness/gpu_backend.py` with one.  `fitness/cluster/pool.py` has many
of both, on the machines of a cluster.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, Self

from evo.core import VERSION
from evo.core.errors import EvoError, TaskError
from evo.core.records import (
    GPU_FACTS,
    PYTORCH_CALL,
    Bar,
    Build,
    Candidate,
    Certificate,
    Check,
    Evaluation,
    Profile,
    SeedEstimate,
    Timing,
    Verdict,
    fitness_of,
    weighted_geometric_mean,
)
from fitness.candidate import CompiledCandidate, Estimates
from fitness.estimate.attainable import attainable_us
from fitness.first_looks import FirstLooks
from fitness.frontend.freeze import freeze
from fitness.frontend.plan import Config
from fitness.frontend.stages import Stop, surviving
from fitness.frontend.target import Target
from fitness.gpu.launch_bundle import as_record
from fitness.gpu.runner import LaunchBundle
from fitness.profile import profile as profiles
from fitness.profile.ncu import Counters, NoCounters
from fitness.sandbox.scratch import NO_SPACE, no_space
from fitness.tasks.advice import on_failing_seed
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task
from fitness.tasks.work import work_of

Choices = Mapping[str, Sequence[int]]  # call name -> configuration of each launch


@dataclass(frozen=True)
class Look:
    """A first look at the tune cases of a candidate: coarse times, one for each case."""

    timings: tuple[Timing, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage, as those of a BackendResult


@dataclass(frozen=True)
class BackendResult:
    """A candidate that is right, and how fast it is."""

    check: Check
    timings: tuple[Timing, ...]
    choices: Choices
    note: str = ""  # what is worth knowing beside the verdict.
    environment: Mapping[str, Any] = field(default_factory=dict)  # of this candidate, e.g. its certificate.
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage, if waiting for the GPU is counted separately


class SeedError(TaskError):
    """The seed kernel of a task does not pass it; `verdict` says how it failed."""

    def __init__(self, message: str, verdict: Verdict = Verdict.WRONG) -> None:
        super().__init__(message)
        self.verdict = verdict  # a copy of it in another process is made from the message, and gets this after


def _seed_error(task: Task, verdict: Verdict, stage: str, message: str) -> EvoError:
    """Returns a SeedError or, without a seed, a TaskError; an EvoError if the machine is at fault."""
    if NO_SPACE in message:
        return no_space()
    if verdict is Verdict.INFRASTRUCTURE:
        what = "its kernel.py" if task.seed_source is not None else f"its baseline, {task.timed_against.text},"
        return EvoError(f"task {task.name!r}: expected to evaluate {what} on this machine, got: {message}; try again")
    if task.seed_source is None:
        return TaskError(
            f"task {task.name!r}: expected to time its baseline, {task.timed_against.text}, but it was found "
            f"{verdict} at stage {stage}: {message}"
        )
    return SeedError(
        f"task {task.name!r}: its own kernel.py must pass before a search makes sense, but it was found {verdict} at "
        f"stage {stage}: {message}. {on_failing_seed(task, verdict, message)}",
        verdict,
    )


class CandidateBuilder(Protocol):
    """Does what `fitness.candidate.FrontEnd` does, here or elsewhere.  Several threads may call it at once."""

    @property
    def layers(self) -> Mapping[str, str]: ...
    def baseline(self) -> CompiledCandidate: ...
    def baseline_estimates(self) -> Estimates: ...
    def collect(self, source: str) -> CompiledCandidate: ...
    def complete(self, source: str, compiled: CompiledCandidate) -> CompiledCandidate: ...
    def estimates(self, source: str, compiled: CompiledCandidate) -> Estimates: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """Verifies and times candidates.  Several threads may call `evaluate` at once."""

    stage: str  # in which it spends its time

    @property
    def environment(self) -> Mapping[str, Any]:
        """Returns what evaluates, for records: known after `prepare`."""
        ...

    def prepare(self, seed: str, compiled: CompiledCandidate) -> BackendResult:
        """Evaluates the baseline: the seed kernel, or PyTorch if the task has none.

        seed: the text of trial 0; compiled: what `CandidateBuilder.collect` gave for it, or, without a seed kernel,
        `CandidateBuilder.baseline`.
        Raises Stop, and EvoError if the backend cannot evaluate at all.
        """
        ...

    def look(self, source: str, compiled: CompiledCandidate, key: str) -> Look:
        """Takes coarse times of a candidate that is compiled for the tune cases alone.

        Raises Stop if it is found to be wrong.  A candidate that goes on is evaluated from the start, on other inputs.
        """
        ...

    def evaluate(self, source: str, compiled: CompiledCandidate, key: str) -> BackendResult:
        """Verifies and times; `key` keys the inputs.  Raises Stop with the verdict."""
        ...

    def certify(self, source: str, key: str) -> Certificate:
        """Certifies that the Python of an OK candidate does on a GPU what was recorded of it."""
        ...

    def counters(self, bundle: LaunchBundle, case: str) -> Counters:
        """Returns hardware counters of the launches of one case.  Raises NoCounters."""
        ...

    def close(self) -> None: ...


class TaskEvaluator:
    """Evaluates candidates of one task for one target.  Thread-safe: several threads may evaluate at once."""

    def __init__(self, task: Task, target: Target, front_end: CandidateBuilder, backend: Backend) -> None:
        """Keeps both; `front_end` and `backend` are closed with the evaluator."""
        self.task, self.target = task, target
        self._front_end, self._backend = front_end, backend
        self._tune = [case.name for case in task.cases if case.role == "tune"]
        self._pytorch_estimates: Estimates | None = None  # of a task without a seed kernel, once asked for
        self._memo: OrderedDict[str, CompiledCandidate | Stop] = OrderedDict()
        # By plan hash, and whether counters were asked for.
        self._profiles: dict[tuple[str, bool], Future[Profile]] = {}
        self._denied = ""  # why counters could not be read; then they are not asked for again
        self._first_looks = FirstLooks()
        self._lock = threading.Lock()

    # --- what the engine calls ---------------------------------------------------------------------------------------

    def prepare(self) -> Evaluation:
        """Evaluates the baseline, against which all others are compared: the seed kernel, or PyTorch.

        Raises SeedError if the seed does not pass its own task: nothing could be learnt from such a search; TaskError
        if PyTorch cannot be timed.  Raises EvoError if nothing here can evaluate.
        """
        seed = Candidate(self.task.first_source)
        compiled = self._compiled_baseline()
        if isinstance(compiled, Stop):
            raise _seed_error(self.task, compiled.verdict, compiled.stage, compiled.message)
        evaluation = self._evaluate(seed, compiled, lambda: self._backend.prepare(seed.source, compiled))
        if evaluation.verdict is not Verdict.OK:
            raise _seed_error(self.task, evaluation.verdict, evaluation.stage, evaluation.message)
        return evaluation

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        """Returns the verdict on `candidate`.

        seed: keys the inputs; known: maps plan hashes to evaluated candidates; bar: if it is above what a first look
        shows, the candidate is SLOW, and neither its holdout cases nor its results are fully checked.  On a GPU looks
        are taken as long as they pay.
        """
        compiled = self._compile(candidate.source)
        if isinstance(compiled, Stop):
            return self._failure(candidate, compiled, CompiledCandidate())
        duplicate = known.get(compiled.plan_hash)
        if duplicate is not None and duplicate != candidate.id:
            message = f"same machine code, grids and arguments in all that is timed as candidate {duplicate}"
            return self._failure(
                candidate, Stop("screen", Verdict.DUPLICATE, message), compiled, duplicate_of=duplicate
            )
        key = f"{candidate.id}:{seed}"
        looked = self._look(candidate, compiled, key, bar) if bar is not None and self._first_looks.pay() else Look(())
        if isinstance(looked, Evaluation):
            return looked
        whole = self._whole(candidate.source, compiled)
        if isinstance(whole, Stop):
            return self._failure(candidate, whole, CompiledCandidate(), looked.seconds)

        def run() -> BackendResult:
            result = self._backend.evaluate(candidate.source, whole, key)
            if bar is not None and (seconds := result.seconds.get(self._backend.stage)):
                below = None if looked.timings else bar.is_above(result.timings)
                self._first_looks.evaluated(seconds, below=below)
            return result

        return self._evaluate(candidate, whole, run, looked.seconds)

    def _look(self, candidate: Candidate, compiled: CompiledCandidate, key: str, bar: Bar) -> Evaluation | Look:
        """Returns a first look, or the evaluation that it ends."""
        begin = time.perf_counter()
        try:
            with surviving(self._backend.stage):
                look = self._backend.look(candidate.source, compiled, f"look:{key}")
        except Stop as stop:
            return self._failure(candidate, stop, compiled, self._seconds(stop, time.perf_counter() - begin))
        ended = bar.is_above(look.timings)
        seconds: Mapping[str, float] = {}
        if look.seconds:
            seconds = self._seconds(look, time.perf_counter() - begin)
            self._first_looks.looked(look.seconds[self._backend.stage], ended=ended)
        if not ended:
            return Look(look.timings, seconds)
        message = f"{fitness_of(look.timings)} at a first look, below the {bar} of a possible parent"
        slow = Stop("look", Verdict.SLOW, message)
        return self._failure(candidate, slow, compiled, seconds, look=self._beside_attainable(look.timings))

    def certify(self, source: str, *, seed: int) -> Certificate:
        """Returns the certificate of a source that was OK (frozen, if it was autotuned).  Call it after `prepare`."""
        return self._backend.certify(source, f"certify:{Candidate(source).id}:{seed}")

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """Returns the estimated speedup over the seed for each source, without verification.

        None without an estimate.
        """
        baseline = self._baseline_estimates()
        return [_estimated_speedup(baseline, self._estimates(source), self.task.weights) for source in sources]

    def estimate_seed(self) -> SeedEstimate:
        """Returns what the compiler and the model of the target say of the seed kernel; nothing is executed.

        Needs no `prepare`.  Raises EvoError if the seed does not compile or the model has no time for it.
        """
        source = self.task.needed_seed
        compiled = self._compile(source)
        if isinstance(compiled, Stop):
            raise _seed_error(self.task, compiled.verdict, compiled.stage, compiled.message)
        estimates = self._estimates(source)
        if estimates is None:
            raise EvoError(f"task {self.task.name}: the model of {self.target.name} has no time for the seed kernel")
        timings = tuple(
            Timing(name, (e.total_us,), (e.total_us,), 1.0, (1.0, 1.0), True, dict(e.terms))
            for name, e in estimates.items()
        )
        of = profiles.subject(self.task, timings, compiled.plans, compiled.choices, compiled.builds)
        profile = profiles.from_estimate(of, estimates[of.case.name], self.target)
        return SeedEstimate(self._chosen_builds(compiled, compiled.choices), timings, profile)

    def plan_hash(self, source: str) -> str:
        """Returns a text that is equal for sources that do the same work on the device in all tune cases.

        Same work: machine code, grids and arguments. "" for sources that are refused before that.
        """
        compiled = self._compile(source)
        return "" if isinstance(compiled, Stop) else compiled.plan_hash

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        """Returns what limits an OK candidate, from the best available tier; without `counters` from the others.

        Profiles of equal work on the device are made once; threads that ask meanwhile wait.  Raises EvoError if the
        evaluation is not ok.
        """
        if evaluation.verdict is not Verdict.OK:
            raise EvoError(f"expected an evaluation that is ok to profile, got {evaluation.verdict}")
        work = (evaluation.plan_hash, counters)
        with self._lock:
            mine = work not in self._profiles
            known = self._profiles.setdefault(work, Future())
        if mine:
            try:
                known.set_result(self._profile(candidate, evaluation, counters))
            except BaseException as error:
                with self._lock:
                    del self._profiles[work]  # another try may succeed
                known.set_exception(error)
        return known.result()

    def _profile(self, candidate: Candidate, evaluation: Evaluation, counters: bool) -> Profile:
        # Frozen, each kernel has one configuration, the chosen one.
        source = evaluation.frozen_source or candidate.source
        compiled = self._compile(source)
        if isinstance(compiled, Stop):
            raise EvoError(f"candidate {candidate.id} was ok and is now found {compiled.verdict}: {compiled.message}")
        of = profiles.subject(self.task, evaluation.timings, compiled.plans, compiled.choices, compiled.builds)
        if evaluation.estimated:
            estimates = self._estimates(source)
            assert estimates is not None  # the evaluation is made of them
            return profiles.from_estimate(of, estimates[of.case.name], self.target, self._no_counters)
        counted = self._counted(compiled, of) if counters else "counters are read of new bests that a prompt may show"
        if isinstance(counted, Profile):
            return counted
        timing = next(t for t in evaluation.timings if t.case == of.case.name)
        estimates = self._estimates(source)
        estimate = estimates[of.case.name] if estimates else None
        return profiles.from_timing(of, timing, estimate, self.target, self._backend.environment, counted)

    _no_counters = "no GPU measures this run"

    def _counted(self, compiled: CompiledCandidate, of: profiles.Subject) -> Profile | str:
        """Returns the profile from hardware counters, or why it could not be read."""
        if self._denied:
            return self._denied
        bundle = compiled.bundle({of.case.name: list(of.choice)})
        try:
            return profiles.from_counters(of, self._backend.counters(bundle, of.case.name), self.target)
        except NoCounters as error:
            self._denied = str(error)
            return self._denied

    @property
    def environment(self) -> Mapping[str, Any]:
        """Returns versions and protections of this evaluator, and, after `prepare`, what evaluates."""
        here: dict[str, Any] = {"target": self.target.name, "sandbox": self._front_end.layers}
        if self.target.spec != self.target.name:  # another machine than the one that the name stands for
            here[GPU_FACTS] = self.target.spec
        if not self.target.calibrated and "gpu" not in self._backend.environment:
            here["estimates"] = "uncalibrated"  # no measurement has tested the time model of this machine
        return MappingProxyType({**_versions(), **here, **self._backend.environment})

    def close(self) -> None:
        self._backend.close()
        self._front_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- compiling ---------------------------------------------------------------------------------------------------

    def _compile(self, source: str) -> CompiledCandidate | Stop:
        """Runs all stages before verification and remembers the result: a screened source is often evaluated next."""
        with self._lock:
            if source in self._memo:
                self._memo.move_to_end(source)
                return self._memo[source]
        return self._remembered(source, lambda: self._front_end.collect(source))

    def _whole(self, source: str, compiled: CompiledCandidate) -> CompiledCandidate | Stop:
        """Adds the builds that verification needs and finding duplicates does not."""
        if not compiled.unbuilt:
            return compiled
        return self._remembered(source, lambda: self._front_end.complete(source, compiled))

    def _remembered(self, source: str, collect: Callable[[], CompiledCandidate]) -> CompiledCandidate | Stop:
        try:
            with surviving("record"):
                result: CompiledCandidate | Stop = collect()
        except Stop as stop:
            result = stop
        if not (isinstance(result, Stop) and result.verdict is Verdict.INFRASTRUCTURE):
            with self._lock:
                self._memo[source] = result
                while len(self._memo) > 128:
                    self._memo.popitem(last=False)
        return result

    def _compiled_baseline(self) -> CompiledCandidate | Stop:
        if self.task.seed_source is not None:
            return self._compile(self.task.seed_source)
        try:
            with surviving("record"):
                return self._front_end.baseline()
        except Stop as stop:
            return stop

    def _baseline_estimates(self) -> Estimates | None:
        """Returns the estimate of each tune case of the baseline; None without estimates."""
        if self.task.seed_source is not None:
            return self._estimates(self.task.seed_source)
        with self._lock:
            if self._pytorch_estimates is None:
                self._pytorch_estimates = {}
                with suppress(Stop), surviving("estimate"):
                    self._pytorch_estimates = self._front_end.baseline_estimates()
        return self._pytorch_estimates or None

    def _estimates(self, source: str) -> Estimates | None:
        """Returns the estimate of each tune case, None without estimates.

        Candidates that a GPU evaluates are estimated on request: runs that measure seldom ask.
        """
        compiled = self._compile(source)
        if isinstance(compiled, Stop) or not compiled.plans:
            return None
        if not compiled.estimates:
            with suppress(Stop), surviving("estimate"):
                compiled.estimates = self._front_end.estimates(source, compiled)
        return compiled.estimates or None

    # --- evaluations -------------------------------------------------------------------------------------------------

    def _evaluate(
        self,
        candidate: Candidate,
        compiled: CompiledCandidate,
        run: Callable[[], BackendResult],
        earlier: Mapping[str, float] = MappingProxyType({}),
    ) -> Evaluation:
        """Returns the evaluation of what `run` finds.  earlier: seconds of a first look, which count too."""
        begin = time.perf_counter()
        try:
            with surviving(self._backend.stage):
                result = run()
                seconds = _sum(earlier, self._seconds(result, time.perf_counter() - begin))
                return self._passed(candidate, compiled, result, seconds)
        except Stop as stop:
            seconds = _sum(earlier, self._seconds(stop, time.perf_counter() - begin))
            return self._failure(candidate, stop, compiled, seconds)

    def _passed(
        self, candidate: Candidate, compiled: CompiledCandidate, result: BackendResult, backend_s: Mapping[str, float]
    ) -> Evaluation:
        return Evaluation(
            candidate=candidate.id,
            verdict=Verdict.OK,
            stage="done",
            message=result.note,
            builds=self._chosen_builds(compiled, result.choices),
            check=result.check,
            timings=self._beside_attainable(result.timings),
            plan_hash=compiled.plan_hash,
            frozen_source=freeze(candidate.source, chosen_configs(compiled, result.choices)),
            seconds={**compiled.seconds, **backend_s},
            environment={**self._environment(compiled), **self._call_timed(candidate), **result.environment},
        )

    def _beside_attainable(self, timings: Sequence[Timing]) -> tuple[Timing, ...]:
        return tuple(replace(t, attainable_us=self._attainable_us.get(t.case)) for t in timings)

    @cached_property
    def _attainable_us(self) -> Mapping[str, float]:
        """The attainable time of each tune case whose work is stated, counted, or traced of the seed kernel."""
        gpu = self._backend.environment
        measured = gpu if "copy_bytes_per_s" in gpu else None
        calls, found = Calls(self.task), {}
        for case in calls.tune:
            work = work_of(self.task, case, calls.describe(case))
            if work is None and (estimates := self._baseline_estimates()):
                work = estimates[case.name].work
            if work is not None and (least_us := attainable_us(work, self.target, measured)):
                found[case.name] = least_us
        return found

    def _seconds(self, found: BackendResult | Look | Stop, wall_s: float) -> Mapping[str, float]:
        """Returns seconds by stage. "wait" is the time that a backend with its own clock did not count."""
        if not found.seconds:
            return {self._backend.stage: wall_s}
        return {**found.seconds, "wait": max(0.0, wall_s - math.fsum(found.seconds.values()))}

    def _call_timed(self, candidate: Candidate) -> dict[str, str]:
        """Returns which call of PyTorch was timed, if it stands in the place of a candidate."""
        timed = self.task.seed_source is None and candidate.id == Candidate(self.task.first_source).id
        return {PYTORCH_CALL: self.task.timed_against.value} if timed else {}

    def _chosen_builds(self, compiled: CompiledCandidate, choices: Choices) -> tuple[Build, ...]:
        """Returns one Build for each distinct machine code that the tune cases launch, in launch order."""
        found: dict[str, Build] = {}
        for name in self._tune if choices else ():  # PyTorch has none
            for by_config, i in zip(compiled.builds[name], choices[name], strict=True):
                build = as_record(by_config[i])
                found.setdefault(build.sass_hash, build)
        return tuple(found.values())

    def _failure(
        self,
        candidate: Candidate,
        stop: Stop,
        compiled: CompiledCandidate,
        backend_s: Mapping[str, float] = MappingProxyType({}),
        *,
        duplicate_of: str = "",
        look: tuple[Timing, ...] = (),
    ) -> Evaluation:
        return Evaluation(
            candidate=candidate.id,
            verdict=stop.verdict,
            stage=stop.stage,
            message=stop.message,
            findings=stop.findings,
            builds=self._chosen_builds(compiled, compiled.choices) if compiled.choices else (),
            look=look,
            plan_hash=compiled.plan_hash,
            duplicate_of=duplicate_of,
            seconds={**compiled.seconds, **backend_s},
            environment=self._environment(compiled),
        )

    def _environment(self, compiled: CompiledCandidate) -> dict[str, Any]:
        gpu = self._backend.environment.get("gpu")
        found: dict[str, Any] = {"target": self.target.name, "sandbox": list(compiled.layers)}
        if compiled.left_out:
            found["left_out"] = list(compiled.left_out)
        return found if gpu is None else {**found, "gpu": gpu}


def chosen_configs(compiled: CompiledCandidate, choices: Choices) -> dict[str, Config]:
    """Returns the chosen configuration of every autotuned kernel that has a single one.

    A kernel that prunes configurations by size may have another one for each size.  Frozen to one, it is another
    kernel.
    """
    found: dict[str, Config] = {}
    for name, chosen in choices.items():
        for launch, i in zip(compiled.plans[name].launches, chosen, strict=True):
            config = launch.configs[i]
            if config.label and found.setdefault(launch.kernel, config).label != config.label:
                return {}
    return found


def _sum(some: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    return {stage: some.get(stage, 0.0) + others.get(stage, 0.0) for stage in {**some, **others}}


def _estimated_speedup(
    baseline: Estimates | None, estimates: Estimates | None, weights: Mapping[str, float]
) -> float | None:
    if baseline is None or estimates is None:
        return None
    ratios = [baseline[case].total_us / estimate.total_us for case, estimate in estimates.items()]
    return weighted_geometric_mean(ratios, [weights[case] for case in estimates])


def _versions() -> dict[str, str]:
    import torch
    import triton

    return {
        "evo": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "machine": platform.machine(),
    }
