"""Evaluates candidates on a machine without a GPU: an interpreter executes them, a model of the target times them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import PYTORCH_IS_RIGHT, Candidate, Certificate, Timing
from fitness.candidate import CompiledCandidate, Estimates, FrontEnd
from fitness.certify.certify import not_run
from fitness.estimate import time_model as model
from fitness.evaluator import BackendResult, Look, TaskEvaluator
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.gpu.runner import LaunchBundle
from fitness.profile.ncu import Counters, NoCounters
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import remove, scratch_folder, scratch_root
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import CPU
from fitness.tasks.task import Task
from fitness.verify.long_loops import AddedCase
from fitness.verify.sampled import Sampled
from fitness.verify.verify import Executable, Jobs, verify

# CPU seconds that the seed may take for all long-loop cases; candidates may take what their limits allow
ADDED_S = 5


def executable(task: Task, source: str, compiled: CompiledCandidate) -> Executable:
    """Returns what the interpreter executes of a source that was compiled for no GPU."""
    calls = {c.name: c.name + CPU for c in task.cases} | {c.name: c.name for c in compiled.added}
    plans = {name: compiled.plans[call] for name, call in calls.items()}
    choices = {name: compiled.choices[call] for name, call in calls.items()}
    return Executable(source, compiled.constants, plans, choices)


class CpuBackend:
    """Verifies at the cases' sizes for a CPU; times are the candidate's estimates."""

    stage = "verify"
    environment: Mapping[str, Any] = {}

    def __init__(
        self, task: Task, target: Target, *, limits: Limits | None = None, zygote: Zygote | None = None
    ) -> None:
        """Keeps the settings.  A `zygote` that is given is shared with others and not closed here."""
        self._task, self.limits = task, limits or Limits()
        self._root = scratch_root()
        self._own_zygote = zygote is None
        self._zygote = zygote or Zygote(target.spec, ("interpret",))
        self._baseline: Estimates | None = None
        self._seed: Executable | None = None  # if it is the reference
        self._added: list[AddedCase] = []  # those that the seed computes correctly
        (self._root / "inputs").mkdir()
        self._sampled = Sampled(task, self._zygote, self._root / "inputs", secrets.token_hex(8))
        self._stored: set[int] = set()  # arguments that the seed stores to

    def prepare(self, seed: str, compiled: CompiledCandidate) -> BackendResult:
        """Evaluates the seed, which becomes the baseline.

        Long-loop cases that the seed fails are not asked of candidates.  Of a task without a seed, the baseline is
        PyTorch: its estimates are known, and it is right by definition.
        """
        self._baseline = compiled.estimates
        if self._task.seed_source is None:
            self._added = list(compiled.added)
            self._sampled.draw_inputs(compiled.plans)
            return BackendResult(PYTORCH_IS_RIGHT, self._timings(compiled), {})
        self._seed = executable(self._task, seed, compiled) if self._task.reference is None else None
        limits = replace(self.limits, cpu_s=min(self.limits.cpu_s, ADDED_S))

        def verify_seed(added: Sequence[AddedCase]) -> BackendResult:
            return self._verified(seed, compiled, f"{Candidate(seed).id}:0", added, limits)

        found = self._prepare_added(compiled, verify_seed)
        with scratch_folder(self._root) as scratch:
            self._sampled.prepare(self._full_size(seed, compiled), compiled.work, scratch, self.limits)
        return found

    def _prepare_added(
        self, compiled: CompiledCandidate, verify_seed: Callable[[Sequence[AddedCase]], BackendResult]
    ) -> BackendResult:
        """Finds the long-loop cases that the seed computes correctly.

        verify_seed: verifies the seed on some of them.
        """
        self._added = list(compiled.added)
        try:
            return verify_seed(self._added)
        except (Stop, EvoError):
            if not compiled.added:
                raise
            found = verify_seed(())  # raises Stop if the seed fails the task's own cases
            self._added = []
            for case in compiled.added:
                with suppress(Stop, EvoError):
                    verify_seed([*self._added, case])
                    self._added.append(case)
            return found

    def look(self, source: str, compiled: CompiledCandidate, key: str) -> Look:
        """Returns the estimated times, which are its times; nothing is executed."""
        return Look(self._timings(compiled))

    def evaluate(self, source: str, compiled: CompiledCandidate, key: str) -> BackendResult:
        """Verifies the candidate and returns its estimated times.  Raises Stop with the verdict."""
        added = [case for case in self._added if case in compiled.added]
        found = self._verified(source, compiled, key, added, self.limits)
        with scratch_folder(self._root) as scratch:
            self._sampled.check(self._full_size(source, compiled), compiled.work, key, scratch, self.limits)
        return found

    def _verified(
        self, source: str, compiled: CompiledCandidate, key: str, added: Sequence[AddedCase], limits: Limits
    ) -> BackendResult:
        """Verifies the candidate on the task's cases and these long-loop cases.

        limits: for the long-loop cases together.
        """
        with scratch_folder(self._root) as scratch:
            check = verify(
                self._task,
                executable(self._task, source, compiled),
                seed=key,
                jobs=Jobs(self._zygote, scratch, self.limits),
                kernel=self._seed,
                added=added,
                added_limits=limits,
                stored_by_seed=self._stored,
            )
        names = {case.name for case in compiled.added}
        return BackendResult(
            check, self._timings(compiled), {name: i for name, i in compiled.choices.items() if name not in names}
        )

    def certify(self, source: str, key: str) -> Certificate:
        """Returns a certificate that says that nothing was certified: it has no GPU."""
        return not_run(source, "times are estimated without one")

    def counters(self, bundle: LaunchBundle, case: str) -> Counters:
        """Raises NoCounters: no GPU measures this run."""
        raise NoCounters("no counters: no GPU measures this run")

    def _full_size(self, source: str, compiled: CompiledCandidate) -> Executable:
        names = [case.name for case in self._task.cases]
        plans = {name: compiled.plans[name] for name in names}
        choices = {name: compiled.choices[name] for name in names}
        return Executable(source, compiled.constants, plans, choices)

    def close(self) -> None:
        if self._own_zygote:
            self._zygote.close()
        remove(self._root)

    def _timings(self, compiled: CompiledCandidate) -> tuple[Timing, ...]:
        return tuple(self._timing(name, estimate) for name, estimate in compiled.estimates.items())

    def _timing(self, case: str, estimate: model.Estimate) -> Timing:
        if self._baseline is None:
            raise EvoError("there is no baseline yet: call prepare() before evaluate()")
        baseline_us = self._baseline[case].total_us
        ratio = baseline_us / estimate.total_us
        return Timing(
            case=case,
            samples_us=(estimate.total_us,),
            baseline_us=(baseline_us,),
            ratio=ratio,
            ci95=model.interval(ratio),
            estimated=True,
            terms=dict(estimate.terms),
            weight=self._task.weights[case],
        )


class CpuEvaluator(TaskEvaluator):
    """Verifies at the cases' sizes for a CPU, estimates at the target's."""

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        limits: Limits | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """Makes a front end and a CPU backend.  A `zygote` that is given is shared with others and not closed here."""
        self._own_zygote = Zygote(target.spec) if zygote is None else None
        zygote = zygote or self._own_zygote
        front_end = FrontEnd(task, target, measured=False, limits=limits, zygote=zygote)
        super().__init__(task, target, front_end, CpuBackend(task, target, limits=limits, zygote=zygote))

    def close(self) -> None:
        if self._own_zygote is not None:
            self._own_zygote.close()
        super().close()
