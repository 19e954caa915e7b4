"""Checks whether the check of a task is vacuous: kernels that do not do their work must be found wrong in all cases.

The seed's own kernels are tried, one after the other (`fitness/validation/idle.py`).  One that is not found wrong is
compared with the seed again, bit for bit, on other inputs.  These are random numbers in all floating tensors and those
of 8 bits, whatever the task draws there.  If it is the same there too, that is the kernel's function (it copies, or its
results are not used).  Otherwise the case does not test the kernel: candidates that do nothing would pass.

A task without a seed kernel gets outputs that nothing wrote, copies of inputs, and zeros.  They are compared with the
reference on the other inputs.  Zeros may not be right there either: a task with zeros as all results tests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evo.core.records import Case, Check, Verdict
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.cpu_backend import CpuBackend, executable
from fitness.frontend.stages import NOTHING_COMPARED, Stop
from fitness.frontend.target import Target
from fitness.gpu.runner import NO_KERNEL, LaunchBundle, Report
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import scratch_folder
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import Calls
from fitness.tasks.other_inputs import SEED, single_case
from fitness.tasks.pytorch_plan import recorded, reference_call
from fitness.tasks.task import Task
from fitness.validation.idle import ANY, COPY, Idle, idle_kernels, idle_plans
from fitness.verify.verify import Executable, Expectations, Jobs, expectations, verify

VACUOUS, SAME, UNTRIED = "vacuous", "same", "untried"

# The result of an idle kernel in each case, on the task's inputs or on others.
Evaluate = Callable[[Idle, bool], Mapping[str, Check | Stop]]


@dataclass(frozen=True)
class VacuousFinding:
    """An idle kernel that is not found wrong in a case.

    what: VACUOUS; SAME, if that is the kernel's function; UNTRIED, if it could not be executed.
    """

    case: str
    kernel: str
    kind: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.case}: kernel {self.kernel} that {self.kind}: {self.why}"


def findings(idles: Iterable[Idle], evaluate: Evaluate) -> list[VacuousFinding]:
    """Returns findings for idle kernels.  evaluate: verifies one."""
    found = []
    for idle in idles:
        results = evaluate(idle, False)
        passed = [case for case, result in results.items() if isinstance(result, Check)]
        again = evaluate(replace(idle, plans={case: idle.plans[case] for case in passed}), True) if passed else {}
        found += [
            VacuousFinding(case, idle.kernel, idle.kind, *_meaning(idle, result, again.get(case)))
            for case, result in results.items()
            if isinstance(result, Check) or result.verdict is not Verdict.WRONG
        ]
    return found


def _meaning(idle: Idle, result: Check | Stop, elsewhere: Check | Stop | None) -> tuple[str, str]:
    """Returns what a result means, and why. elsewhere: the result on other inputs, compared with the seed."""
    if isinstance(result, Stop):
        if result.message == NOTHING_COMPARED:
            return VACUOUS, "nothing is compared: what the reference gives is never finite"
        return UNTRIED, f"{result.verdict}: {result.message}"
    whole = idle.kernel == ANY and idle.kind != COPY  # no task is there to leave its outputs alone, or zero
    if isinstance(elsewhere, Check) and elsewhere.max_error == 0 and not whole:
        return SAME, "the same as the seed to the bit, on other inputs too: it is such a function, or not used"
    return VACUOUS, f"its error is {result.max_error:.2g} of the budget (rms budget {result.budget:.2g})"


def check(found: Sequence[VacuousFinding]) -> None:
    """Raises Stop if a case is vacuous."""
    vacuous = [finding for finding in found if finding.what == VACUOUS]
    if vacuous:
        more = f" (and {len(vacuous) - 1} more)" if len(vacuous) > 1 else ""
        raise Stop("idle", Verdict.UNSUPPORTED, f"not found wrong in {vacuous[0]}{more}")


# --- by the interpreter ----------------------------------------------------------------------------------------------


def of_task(task: Task, target: Target, zygote: Zygote, limits: Limits | None = None) -> list[VacuousFinding]:
    """Returns the findings by the interpreter, at the sizes for a CPU.

    Raises Stop if the seed kernel itself does not pass.
    """
    limits = limits or Limits()
    if task.seed_source is None:
        return without_seed(task, zygote, limits)
    front_end = FrontEnd(task, target, measured=False, limits=limits, zygote=zygote)
    backend = CpuBackend(task, target, limits=limits, zygote=zygote)
    try:
        compiled = front_end.collect(task.seed_source)
        backend.prepare(task.seed_source, compiled)
    finally:
        backend.close()
        front_end.close()
    return by_interpreter(task, executable(task, task.seed_source, compiled), zygote, limits)


def by_interpreter(task: Task, seed: Executable, zygote: Zygote, limits: Limits) -> list[VacuousFinding]:
    """Returns the findings. seed: what the interpreter executes of the seed kernel, at the sizes for a CPU."""
    with scratch_folder() as scratch:
        trials = _Trials(task, seed, Jobs(zygote, scratch, limits))
        plans = {case.name: seed.plans[case.name] for case in task.cases}
        return findings(idle_kernels(task.needed_seed, plans, task.written), trials.evaluate)


def without_seed(task: Task, zygote: Zygote, limits: Limits) -> list[VacuousFinding]:
    """Returns the findings by the interpreter for a task without a seed kernel.

    Raises Stop if its reference cannot be recorded.
    """
    calls = Calls(task)
    plans = {c.name: recorded(task, calls.describe(c.on_cpu()), reference_call) for c in task.cases}
    with scratch_folder() as scratch:
        trials = _Trials(task, Executable("", {}, plans, dict.fromkeys(plans, ())), Jobs(zygote, scratch, limits))
        return findings(idle_plans(plans, task.written), trials.evaluate)


class _Trials:
    """Verifies idle kernels under the interpreter; what they are compared with is made once.

    seed: the seed kernel; without one, an executable of the same cases without launches.
    """

    def __init__(self, task: Task, seed: Executable, jobs: Jobs) -> None:
        self._task, self._seed, self._jobs = task, seed, jobs
        self._expected: dict[tuple[str, bool, bool], Expectations] = {}

    def evaluate(self, idle: Idle, elsewhere: bool) -> dict[str, Check | Stop]:
        kernel = replace(self._seed, source=idle.source, plans={**self._seed.plans, **idle.plans})
        return {c.name: self._verified(kernel, c, elsewhere) for c in self._task.cases if c.name in idle.plans}

    def _verified(self, kernel: Executable, case: Case, elsewhere: bool) -> Check | Stop:
        """Verifies on plain inputs first, which are enough for most."""
        whole = single_case(self._task, case, elsewhere)
        try:
            for stress in (False, True) if whole.stress else (False,):
                found = self._tried(replace(whole, stress=stress), kernel, elsewhere)
            return found
        except Stop as stop:
            return stop

    def _tried(self, task: Task, kernel: Executable, elsewhere: bool) -> Check:
        seed = self._seed if task.reference is None else None
        key = task.cases[0].name, elsewhere, task.stress
        with scratch_folder(self._jobs.scratch) as own:
            jobs = replace(self._jobs, scratch=own)
            if key not in self._expected:
                self._expected[key] = expectations(task, seed=SEED, jobs=jobs, kernel=seed)
            expected = self._expected[key]
            return verify(task, kernel, seed=SEED, jobs=jobs, kernel=seed, prove=False, expected=expected)


# --- on a GPU --------------------------------------------------------------------------------------------------------


def on_gpu(
    task: Task,
    compiled: CompiledCandidate,
    build: Callable[[str, CompiledCandidate], CompiledCandidate],
    beside: Callable[[Task, LaunchBundle, LaunchBundle, bool], Mapping[str, Report]],
) -> list[VacuousFinding]:
    """Returns the findings on a GPU.

    compiled: the seed, built; build: builds another source with its plans; beside: `Runner.beside` for a task.
    """

    def evaluate(idle: Idle, elsewhere: bool) -> Mapping[str, Check | Stop]:
        try:
            built = build(idle.source, replace(compiled, plans=dict(idle.plans), builds={}, cubins={}))
        except Stop as stop:
            return dict.fromkeys(idle.plans, stop)
        reports = beside(task, compiled.bundle(), built.bundle(), elsewhere)
        return {case: _said(report) for case, report in reports.items()}

    plans = {case.name: compiled.plans[case.name] for case in task.cases}
    return findings(idle_kernels(task.needed_seed, plans, task.written), evaluate)


def on_gpu_without_seed(
    task: Task, beside: Callable[[Task, LaunchBundle, LaunchBundle, bool], Mapping[str, Report]]
) -> list[VacuousFinding]:
    """Returns the findings on a GPU for a task without a seed kernel.  beside: `Runner.beside` for a task.

    Raises Stop if its reference cannot be recorded.
    """
    calls = Calls(task)
    plans = {c.name: recorded(task, calls.describe(c), reference_call) for c in task.cases}

    def evaluate(idle: Idle, elsewhere: bool) -> Mapping[str, Check | Stop]:
        nothing: dict[str, list[Any]] = {name: [] for name in idle.plans}
        bundle = LaunchBundle(idle.plans, nothing, {}, nothing)
        return {c: _said(report) for c, report in beside(task, NO_KERNEL, bundle, elsewhere).items()}

    return findings(idle_plans(plans, task.written), evaluate)


def _said(report: Report) -> Check | Stop:
    return report.check or Stop(report.stage, report.verdict, report.message)
