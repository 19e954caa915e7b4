"""Takes a file of a suite through every stage: captured, recorded, compiled, verified against itself.

A file that passes is a task folder whose seed passes; one that fails has the stage at which it ended, and why.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

from evo.core.errors import EvoError, TaskError
from evo.core.records import Verdict
from fitness.candidate import PROGRAMS_SAMPLED, CompiledCandidate
from fitness.estimate.launch_trace import Traffic
from fitness.estimate.time_model import traces_from_json
from fitness.frontend.build_cache import BuildCache
from fitness.frontend.gate import gate
from fitness.frontend.plan import Copy, Fill, Launch, LaunchPlan, Op, TensorRef, to_json
from fitness.frontend.stages import Stop, expect_ok
from fitness.frontend.target import Target
from fitness.gpu import launch_bundle
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import scratch_folder
from fitness.sandbox.zygote import JOBS, Zygote
from fitness.suites import SuiteFile, sizes
from fitness.suites.folder import drawable, write_folder, write_task
from fitness.suites.tritonbench import STAGES, TITLE, TritonBenchFile
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task, check_arguments, load_task
from fitness.validation import vacuous
from fitness.verify.verify import Executable, Jobs, verify

CAPTURE = "fitness.suites.capture"
MOST_CALLS = 5
RUNNERS = 4  # processes on one GPU; starting one after a fault takes seconds
# Tests allocate at will; autotuned kernels come in dozens of configurations.
CAPTURE_LIMITS = Limits(wall_s=120.0, cpu_s=120, memory_bytes=8 << 30)
LIMITS = Limits(wall_s=120.0, cpu_s=120, memory_bytes=8 << 30)
# Seconds for compiling one kernel of a call.  Most candidates of a search are compiled for each call again.
SLOWEST_S = 30.0


@dataclass
class CheckOutcome:
    """How far a file came.  `reason` is "" if it was verified.

    alone: it became a task of a reference alone, so a search needs a model, which writes the first kernel.
    """

    name: str
    stages: list[str] = field(default_factory=list)
    reason: str = ""
    calls: int = 0
    left_out: int = 0  # calls that fail, or with no input that can be drawn again.
    why_left_out: str = ""  # of the first call that fails.
    rules: list[str] = field(default_factory=list)  # static rules that the file as it is breaks.
    note: str = ""  # a remark on one that was verified.
    infinite: list[str] = field(default_factory=list)  # timed calls whose outputs hold infinities, on a GPU.
    vacuous: list[str] = field(default_factory=list)  # kernels that pass without doing their work: left out, by call.
    idle: list[str] = field(default_factory=list)  # kernels that need not do their work, or were not tried without it.
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, waiting for a GPU's process included.
    alone: bool = False

    @property
    def verified(self) -> bool:
        return "verified" in self.stages

    def searchable(self, *, models: bool) -> bool:
        """Whether a search over its task makes sense.  models: whether the search asks language models."""
        return self.verified or (models and self.alone)


Verifier = Callable[[Task, CompiledCandidate], Collection[str]]  # cases whose outputs hold infinities; raises Stop


class GpuVerifier:
    """Verifies on GPUs; several processes share each: others load their tasks meanwhile."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._idle: Queue[Runner] = Queue()
        for runner in runners:
            self._idle.put(runner)

    def __call__(self, task: Task, compiled: CompiledCandidate) -> Collection[str]:
        with self._one() as runner:
            report = runner.verify(task.folder, compiled.bundle())
        if report.verdict is not Verdict.OK:
            raise Stop(report.stage, report.verdict, report.message)
        return report.infinite

    def beside(self, task: Task, seed: LaunchBundle, kernel: LaunchBundle, other: bool) -> Mapping[str, Report]:
        """Verifies other kernels in the seed's place: see `Runner.beside`."""
        with self._one() as runner:
            return runner.beside(task.folder, seed, kernel, other)

    @contextmanager
    def _one(self) -> Iterator[Runner]:
        runner = self._idle.get()
        try:
            yield runner
        finally:
            self._idle.put(runner)


@contextmanager
def gpu_verifier(gpus: int = 1) -> Iterator[GpuVerifier]:
    """Opens a verifier on the first GPUs."""
    with ExitStack() as stack:
        runners = [Runner("softmax", device=number % gpus, wall_s=LIMITS.wall_s) for number in range(RUNNERS * gpus)]
        yield GpuVerifier([stack.enter_context(runner) for runner in runners])


def new_zygote(target: Target) -> Zygote:
    return Zygote(target.spec, (*JOBS, CAPTURE))


class SuiteChecker:
    """Checks files; several threads may call it at once.  This class: those of TritonBench-G."""

    launching = True  # whether the calls that are captured launch kernels

    def __init__(self, root: Path, target: Target, zygote: Zygote, verifier: Verifier | None = None) -> None:
        """Keeps the settings. root: for task folders; verifier: of a GPU; without one, kernels are interpreted."""
        self._root, self._target, self._zygote = root, target, zygote
        self._on_gpu = verifier is not None
        self._verifier = verifier or self._interpreted
        self._cache = BuildCache()  # a file's builds are wanted again when its calls are tried one by one

    def check(self, source: SuiteFile) -> CheckOutcome:
        """Returns how far the file comes.  Raises EvoError if nothing can be checked at all."""
        outcome = CheckOutcome(source.name)
        try:
            with scratch_folder() as scratch:
                self._through(source, scratch, outcome)
        except Stop as stop:
            outcome.reason = f"{stop.stage}: {stop.verdict.value}: {first_line(str(stop))}"
        except TaskError as error:
            outcome.reason = first_line(str(error))
        except EvoError:
            raise
        except Exception as error:  # a file that shows a bug of evo must not stop the check of the others
            outcome.reason = f"fault of evo: {type(error).__name__}: {first_line(str(error))}"
        return outcome

    def _through(self, source: Any, scratch: Path, outcome: CheckOutcome) -> None:
        self._at_sizes(source, scratch, outcome, sizes.MOST_BYTES)
        if outcome.infinite:
            self._at_smaller_sizes(source, scratch, outcome)

    def _at_smaller_sizes(self, source: Any, scratch: Path, outcome: CheckOutcome) -> None:
        """Tries smaller sizes for timed calls that overflow, which cannot be compared.

        Keeps the first if none helps.
        """
        folder, kept = self._root / source.name, scratch / "kept"
        shutil.copytree(folder, kept)
        for times in sizes.SMALLER:
            smaller = CheckOutcome(source.name, seconds=outcome.seconds)
            with scratch_folder(scratch) as own, suppress(Stop, TaskError):
                self._at_sizes(source, own, smaller, sizes.MOST_BYTES // times)
                if not smaller.infinite and not smaller.note:
                    smaller.note = f"at sizes {times} times smaller than usual, at which no output overflows"
                    vars(outcome).update(vars(smaller))
                    return
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)

    def _at_sizes(self, source: Any, scratch: Path, outcome: CheckOutcome, most_bytes: int) -> None:
        with clocked(outcome, "captured"):
            captured = self._capture(source, scratch, outcome, most_bytes)
            calls = drawable(captured)
            task = self._task(source, calls, scratch)
        if len(calls) < len(captured):
            outcome.why_left_out = "a call without an input that may be drawn afresh"
        outcome.stages.append("captured")
        if task.seed_source is not None:
            findings = gate(task.seed_source, entry=task.entry, allow_delegation=task.allow_delegation)
            outcome.rules = sorted({finding.rule for finding in findings})
        try:
            self._all_of(source, calls, scratch, outcome)
        except Stop as stop:
            if stop.verdict is Verdict.TIMEOUT or len(calls) == 1:
                raise
            # A fault of one call: tests also pass indices beyond their arrays.  The other calls may pass.
            good, why = self._good(source, calls, scratch, outcome)
            if not good:
                raise
            _left_out(outcome, calls, good, why)
            self._all_of(source, good, scratch, outcome)
        outcome.left_out += len(captured) - outcome.calls

    def _all_of(
        self, source: TritonBenchFile, calls: Sequence[Mapping[str, Any]], scratch: Path, outcome: CheckOutcome
    ) -> None:
        """Takes these calls through the stages after capture.  Raises Stop, with `outcome` as far as they came."""
        folder = self._root / source.name
        task = self._task(source, calls, scratch)
        described = Calls(task)
        with clocked(outcome, "recorded"):
            for case in task.cases:
                check_arguments(task, case, described.arguments(case))
            compiled = self._record(task, described, scratch)
            outcome.calls = len(task.cases)
            outcome.stages = ["captured", "recorded"]
        with clocked(outcome, "compiled"):
            first = self._first_configurations(task, compiled, scratch)
        quick = _quickly_compiled(calls, task, first, outcome)
        if len(quick) < len(calls):
            self._all_of(source, quick, scratch, outcome)
            return
        with clocked(outcome, "recorded"):
            written = written_arguments(task, described, first, self._zygote)
        for name, plan in compiled.plans.items():
            if not plan.outputs and not plan.tensors_among(sorted(written)):
                message = f"{name} returns no tensor and is not seen to write to one: nothing can be compared"
                raise Stop("record", Verdict.UNSUPPORTED, message)
        writes = [task.parameters[i] for i in sorted(written)]
        write_task(folder, writes)
        try:
            task = load_task(folder, tried=True)
            verified = self._any_configuration(task, compiled, first, scratch, outcome)
        except Stop as stop:
            if stop.verdict is not Verdict.REJECTED:
                raise
            # Most of its own work is done by operators: then a candidate may leave them as much.
            write_task(folder, writes, min_own_share=0.0)
            task = load_task(folder, tried=True)
            verified = self._any_configuration(task, compiled, first, scratch, outcome)
        self._check_idle(task, verified, outcome)
        outcome.stages = list(STAGES)

    def _good(
        self, source: TritonBenchFile, captured: Sequence[Mapping[str, Any]], scratch: Path, outcome: CheckOutcome
    ) -> tuple[list[Mapping[str, Any]], str]:
        """Returns the calls that pass alone, and why the first of the others does not.

        `outcome` is left as far as the whole came, or the call that came farthest.
        """
        found: list[Mapping[str, Any]] = []
        why = ""
        found_together = bool(outcome.vacuous)
        for number, call in enumerate(captured):
            alone = CheckOutcome(source.name, seconds=outcome.seconds)  # what each call takes is part of the whole
            try:
                self._all_of(source, [call], scratch, alone)
                found.append(call)
            except (Stop, TaskError) as problem:
                why = why or first_line(str(problem))
            if not found_together:
                outcome.vacuous += [f"call{number}{finding.removeprefix('call0')}" for finding in alone.vacuous]
            if len(alone.stages) > len(outcome.stages):
                outcome.stages, outcome.calls = alone.stages, alone.calls
        return found, why

    def _any_configuration(
        self, task: Task, compiled: CompiledCandidate, first: CompiledCandidate, scratch: Path, outcome: CheckOutcome
    ) -> CompiledCandidate:
        """Builds with the first configuration of each launch, or, if that fails, verifies with the best.

        Returns the one used.
        """
        try:
            self._verify(task, first, outcome)
            return first
        except Stop as stop:
            tuned = any(len(launch.configs) > 1 for plan in compiled.plans.values() for launch in plan.launches)
            if stop.verdict is Verdict.REJECTED or not tuned:
                raise
            with clocked(outcome, "compiled"):
                built = self._build(task.needed_seed, compiled, scratch)
            self._verify(task, built, outcome)
            return built

    # --- stages ------------------------------------------------------------------------------------------------------

    def _capture(
        self, source: TritonBenchFile, scratch: Path, outcome: CheckOutcome, most_bytes: int
    ) -> list[Mapping[str, Any]]:
        # The sizes at which the suite times a file are too large for the interpreter.
        timed = source.timed if self._on_gpu else ""
        payload = {
            "name": source.name,
            "kernels": source.kernels,
            "tests": source.tests,
            "launching": self.launching,
            "timed": timed,
            "most_bytes": most_bytes,
            "target": self._target.spec,
            "most": MOST_CALLS,
        }
        found = expect_ok("capture", self._zygote.run(CAPTURE, payload, scratch=scratch, limits=CAPTURE_LIMITS))
        if not found["calls"]:
            what = "that launches a kernel" if self.launching else "on tensors"
            raise TaskError(f"its tests call no function {what}: {found['error'] or 'none found'}")
        if self._on_gpu and not any(call["timed"] for call in found["calls"]):
            outcome.note = f"at the sizes of its tests: {first_line(found['untimed']) or 'its script calls no kernel'}"
        return list(found["calls"])

    def _task(self, source: TritonBenchFile, calls: Sequence[Mapping[str, Any]], scratch: Path) -> Task:
        folder = self._root / source.name
        write_folder(folder, f"{TITLE}, {source.name}.py: the calls of its own tests", source.kernels, calls, scratch)
        return load_task(folder, tried=True)  # `write_folder` chose what it draws

    def _record(self, task: Task, calls: Calls, scratch: Path) -> CompiledCandidate:
        described = calls.described()
        wanted = [{"name": case.name, "args": described[case.name]} for case in task.cases]
        recorded = launch_bundle.record(task.needed_seed, task, wanted, **self._in(scratch))
        return CompiledCandidate(plans=recorded.plans, constants=recorded.constants, layers=recorded.layers)

    def _first_configurations(self, task: Task, compiled: CompiledCandidate, scratch: Path) -> CompiledCandidate:
        """Builds every launch with one configuration alone: the first with which its kernel can be compiled.

        Raises Stop, also without such a configuration.
        """
        left = compiled.plans
        while True:
            try:
                return self._build(task.needed_seed, replace(compiled, plans=configurations(left, slice(1))), scratch)
            except launch_bundle.Unbuildable as stop:
                fewer = configurations(left, slice(1, None), stop.kernel)
                if fewer == left:
                    raise
                left = fewer

    def _build(self, source: str, compiled: CompiledCandidate, scratch: Path) -> CompiledCandidate:
        given = (source, compiled.plans, compiled.constants)
        with scratch_folder(scratch) as own:
            built = launch_bundle.build(*given, cache=self._cache, **self._in(own))
            cubins = launch_bundle.cubins(built.builds, own)
        return replace(compiled, plans=built.plans, builds=built.builds, cubins=cubins)

    def _verify(self, task: Task, compiled: CompiledCandidate, outcome: CheckOutcome) -> None:
        outcome.stages = ["captured", "recorded", "compiled"]
        with clocked(outcome, "verified"):
            infinite = self._verifier(task, compiled)
        timed = {case.name for case in task.cases if case.role == "tune"}
        outcome.infinite = sorted(timed & set(infinite)) if self._on_gpu else []

    def _check_idle(self, task: Task, compiled: CompiledCandidate, outcome: CheckOutcome) -> None:
        """Raises Stop if kernels that do not do their work are not found wrong."""
        with clocked(outcome, "idle"):
            if isinstance(self._verifier, GpuVerifier):
                beside = self._verifier.beside
                found = (
                    vacuous.on_gpu_without_seed(task, beside)
                    if task.seed_source is None
                    else vacuous.on_gpu(task, compiled, self._built_beside, beside)
                )
            elif task.seed_source is None and not self._on_gpu:
                found = vacuous.without_seed(task, self._zygote, LIMITS)
            elif not self._on_gpu:
                found = vacuous.by_interpreter(task, self._executable(task, compiled), self._zygote, LIMITS)
            else:
                found = []
            outcome.idle = [str(finding) for finding in found if finding.what != vacuous.VACUOUS]
            passed = [str(finding) for finding in found if finding.what == vacuous.VACUOUS]
            outcome.vacuous = list(dict.fromkeys([*outcome.vacuous, *passed]))
            vacuous.check(found)

    def _built_beside(self, source: str, compiled: CompiledCandidate) -> CompiledCandidate:
        """Returns the seed with other kernels, built."""
        with scratch_folder() as scratch:
            return self._build(source, compiled, scratch)

    def _executable(self, task: Task, compiled: CompiledCandidate) -> Executable:
        choices = {name: [0] * len(plan.launches) for name, plan in compiled.plans.items()}
        return Executable(task.needed_seed, compiled.constants, compiled.plans, choices)

    def _interpreted(self, task: Task, compiled: CompiledCandidate) -> Collection[str]:
        """Verifies by Triton's interpreter, at sizes that are never timed."""
        kernel = self._executable(task, compiled)
        with scratch_folder() as scratch:
            jobs = Jobs(self._zygote, scratch, LIMITS)
            verify(task, kernel, seed="suite", jobs=jobs, kernel=kernel)
        return ()

    def _in(self, scratch: Path) -> dict[str, Any]:
        return {"zygote": self._zygote, "target": self._target.spec, "scratch": scratch, "limits": LIMITS}


def written_arguments(task: Task, calls: Calls, compiled: CompiledCandidate, zygote: Zygote) -> set[int]:
    """Returns positions of the arguments that the seed writes to, by its steps and by sampled programs.

    compiled: with one configuration a launch.  A launch that cannot be traced is taken to write nothing; verification
    finds it out.
    """
    found: set[int] = set()
    for case in task.cases:
        plan = compiled.plans[case.name]
        found |= _written_by_steps(plan)
        payload = {
            "source": task.needed_seed,
            "constants": compiled.constants,
            "samples": PROGRAMS_SAMPLED,
        }
        with scratch_folder() as own:
            payload["cases"] = [{"plan": to_json(plan), "integers": calls.give_integers(case.name, own)}]
            result = zygote.run("trace", payload, scratch=own, limits=LIMITS)
        if result.status == "ok":
            for by_config in traces_from_json(expect_ok("trace", result)["cases"][0]["launches"]):
                found |= _inputs_among(plan, by_config[0].traffic)
    return found


def _quickly_compiled(
    calls: Sequence[Mapping[str, Any]], task: Task, built: CompiledCandidate, outcome: CheckOutcome
) -> Sequence[Mapping[str, Any]]:
    """Returns the calls that a search can afford to compile for; `outcome` says so if others are left out.

    Raises Stop if all are.
    """
    seconds = [launch_bundle.slowest({case.name: built.builds[case.name]}) for case in task.cases]
    quick = [call for call, s in zip(calls, seconds, strict=True) if s <= SLOWEST_S]
    if len(quick) == len(calls):
        return calls
    why = f"compiling a kernel takes {max(seconds):.0f} s, more than the {SLOWEST_S:g} s that a search can afford"
    if not quick:
        raise Stop("compile", Verdict.TIMEOUT, why)
    _left_out(outcome, calls, quick, why)
    return quick


def _left_out(
    outcome: CheckOutcome, calls: Sequence[Mapping[str, Any]], left: Sequence[Mapping[str, Any]], why: str
) -> None:
    """Notes why some calls are left out, and if these are all that the file's script times."""
    outcome.why_left_out = outcome.why_left_out or why
    if any(call["timed"] for call in calls) and not any(call["timed"] for call in left):
        outcome.note = f"at the sizes of its tests: at those of its script, {why}"


@contextmanager
def clocked(outcome: CheckOutcome, stage: str) -> Iterator[None]:
    """Adds the seconds that what follows takes to those of the stage."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        add_seconds(outcome, stage, time.perf_counter() - begin)


def add_seconds(outcome: CheckOutcome, stage: str, seconds: float) -> None:
    """Adds to the seconds of the stage: a stage has several times if calls are tried one by one."""
    outcome.seconds[stage] = round(outcome.seconds.get(stage, 0.0) + seconds, 3)


def configurations(plans: Mapping[str, LaunchPlan], which: slice, kernel: str = "") -> dict[str, LaunchPlan]:
    """Returns the plans with those configurations of each launch, or of one kernel; with all if it has no such one."""

    def chosen(step: Any) -> Any:
        if not isinstance(step, Launch) or kernel not in ("", step.kernel):
            return step
        return replace(step, configs=step.configs[which] or step.configs)

    return {name: replace(plan, steps=tuple(map(chosen, plan.steps))) for name, plan in plans.items()}


def _inputs_among(plan: LaunchPlan, traffic: Sequence[Traffic]) -> set[int]:
    buffers = {t.buffer for t in traffic if t.kind != "load"}
    return {i for b in buffers if (i := plan.buffers[b].input) is not None}


def _written_by_steps(plan: LaunchPlan) -> set[int]:
    refs: list[Any] = []
    for step in plan.steps:
        match step:
            case Fill() | Copy():
                refs.append(step.dst)
            case Op():
                refs += step.outputs
    owners = (plan.buffers[ref.buffer].input for ref in refs if isinstance(ref, TensorRef))
    return {i for i in owners if i is not None}


def first_line(text: str) -> str:
    """Returns the first line of a message; "" if it is empty."""
    return (text.strip().splitlines() or [""])[0]
