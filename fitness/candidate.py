"""Builds what is known about a source before verification: gate, record, compile and screen.

Each stage adds to a CompiledCandidate or raises Stop with the verdict.  The order is that of ARCHITECTURE.md.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evo.core.records import Case, Finding, Verdict
from fitness.estimate import attainable, roofline
from fitness.estimate import time_model as model
from fitness.estimate.coverage import Seen, coverage, seen, seen_in_reference
from fitness.estimate.launch_trace import LaunchTrace, LaunchWork
from fitness.frontend import screen
from fitness.frontend.build_cache import BuildCache
from fitness.frontend.gate import gate, not_inherited
from fitness.frontend.plan import LaunchPlan, to_json
from fitness.frontend.stages import Stop, expect_ok, surviving
from fitness.frontend.target import Target
from fitness.gpu import launch_bundle as steps
from fitness.gpu.runner import LaunchBundle
from fitness.sandbox import layers
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import remove, scratch_folder, scratch_root
from fitness.sandbox.zygote import Zygote
from fitness.tasks import pytorch_plan
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task
from fitness.verify.long_loops import AddedCase, added_cases

PROGRAMS_SAMPLED = 5  # per launch, for the estimate; what its constants were fitted with
# CPU seconds that compiling one configuration may take: BUILD_S, or TIMES_SEED times what the slowest build of the seed
# took.  Blocks far too large compile for minutes and are slow: docs/suites.md, "What compiling may take".
BUILD_S, TIMES_SEED = 10.0, 3.0

Estimates = dict[str, model.Estimate]  # by tune case


@dataclass
class CompiledCandidate:
    """All that is known about a source before it is verified."""

    plans: dict[str, LaunchPlan] = field(default_factory=dict)  # by call name
    constants: dict[str, Any] = field(default_factory=dict)  # globals the kernels use
    builds: steps.Builds = field(default_factory=dict)  # of the compiled cases
    unbuilt: tuple[str, ...] = ()  # cases that `FrontEnd.complete` compiles before verification.
    left_out: tuple[str, ...] = ()  # configurations that cannot be compiled: the plans are without them.
    cubins: dict[str, bytes] = field(default_factory=dict)  # machine code, if it is going to be launched.
    plan_hash: str = ""  # over the tune cases
    choices: dict[str, list[int]] = field(default_factory=dict)  # of the estimate
    work: dict[str, list[LaunchWork]] = field(default_factory=dict)  # of each launch, by case
    estimates: Estimates = field(default_factory=dict)
    # long-loop and reduced cases: beside the task's own, with plans under their names
    added: tuple[AddedCase, ...] = ()
    layers: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def bundle(
        self, choices: Mapping[str, Sequence[int]] | None = None, *, cases: Collection[str] | None = None
    ) -> LaunchBundle:
        """Returns what a GPU executes of it.

        choices: the configuration of each launch, by case, if it is known; cases: those whose plans are in it (default:
        all).
        """
        plans = self.plans if cases is None else {name: self.plans[name] for name in cases}
        return LaunchBundle(plans, self.builds, self.cubins, choices or {})


class FrontEnd:
    """Builds the CompiledCandidate of sources of one task for one target.  Thread-safe: several threads may call it.

    All cases are recorded and compiled at the target's sizes, the tune cases first: see `complete`.

    measured: whether a GPU evaluates the candidates.  If so, the machine code is kept, and estimates are made on
    request.  If not, the cases are also recorded at their sizes for a CPU, with long-loop and reduced cases, and the
    tune cases are estimated.
    """

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        measured: bool,
        limits: Limits | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """Makes its scratch folder and its zygote.

        A `zygote` that is given is shared with others and not closed here.
        """
        self.task, self.target, self.limits = task, target, limits or Limits()
        self._measured = measured
        self.use_gate = True  # switched off to test that the later stages hold without the first.
        self._root = scratch_root()
        self._calls = Calls(task, self._root)
        self._cache = BuildCache()
        self._seed_s: float | None = None  # what its slowest build took.
        self._added: tuple[AddedCase, ...] | None = None
        self._seed_plans: Mapping[str, LaunchPlan] = {}
        self._seen_of_seed: dict[str, Seen] = {}  # by case
        self._lock = threading.RLock()
        self._own_zygote = zygote is None
        self._zygote = zygote or Zygote(target.spec, ("record", "compile", "trace"))

    def collect(self, source: str) -> CompiledCandidate:
        """Returns what all stages before verification find, except for `complete`.  Raises Stop with the verdict."""
        compiled = CompiledCandidate()
        stages: list[Callable[[str, CompiledCandidate, Path], None]] = [
            self._gate,
            self._record,
            self._compile,
            self._screen,
        ]
        if not self._measured:
            stages.append(self._estimate_timed)
        with scratch_folder(self._root) as scratch:
            for stage in stages:
                begin, name = time.perf_counter(), stage.__name__.strip("_").partition("_")[0]
                with surviving(name):
                    stage(source, compiled, scratch)
                compiled.seconds[name] = time.perf_counter() - begin
        return compiled

    def baseline(self) -> CompiledCandidate:
        """Returns what candidates of a task without a seed kernel are compared with: PyTorch's operators, recorded.

        Its plans, by case, have no launches.  They are recorded, and the tune cases estimated, if no GPU measures, and
        else on request (`baseline_estimates`).  Raises Stop.
        """
        if self._measured:
            return CompiledCandidate()
        kind = self.task.timed_against
        if kind.compiled:
            message = f"{kind.text} is only measured, and here times are estimated: use --baseline eager, or a GPU"
            raise Stop("estimate", Verdict.UNSUPPORTED, message)
        return CompiledCandidate(
            plans=dict(self._reference_plans), estimates=self.baseline_estimates(), added=self._added_of_baseline()
        )

    def baseline_estimates(self) -> Estimates:
        """Returns the estimate of each tune case of PyTorch's operators.  Raises Stop."""
        tf32 = self.task.timed_against.tf32
        return {
            case.name: model.estimate(self._timed_plan(case), (), (), (), self.target, tf32=tf32)
            for case in self._calls.tune
        }

    def _timed_plan(self, case: Case) -> LaunchPlan:
        if self.task.baseline is None:
            return self._reference_plans[case.name]
        return pytorch_plan.recorded(self.task, self._calls.describe(case), Task.timed_call)

    @cached_property
    def _reference_plans(self) -> dict[str, LaunchPlan]:
        """The reference's operators at the target's sizes, by case."""
        return {
            case.name: pytorch_plan.recorded(self.task, self._calls.describe(case), pytorch_plan.reference_call)
            for case in self.task.cases
        }

    def complete(self, source: str, compiled: CompiledCandidate) -> CompiledCandidate:
        """Returns the candidate with the builds that are verified and not timed, and, without a GPU, with their traces.

        A duplicate does not need them.  Only a GPU needs their machine code.  Raises Stop.
        """
        if not compiled.unbuilt:
            return compiled
        whole = dataclasses.replace(
            compiled, unbuilt=(), seconds=dict(compiled.seconds), work=dict(compiled.work)
        )  # others may be reading `compiled`
        begin = time.perf_counter()
        with scratch_folder(self._root) as scratch, surviving("compile"):
            self._compile_cases(source, whole, scratch, compiled.unbuilt, label="rest", machine_code=self._measured)
        whole.seconds["compile"] += time.perf_counter() - begin
        if not self._measured:
            begin = time.perf_counter()
            with scratch_folder(self._root) as scratch, surviving("estimate"):
                if whole.left_out != compiled.left_out:  # estimates were made with configurations that are left out now
                    whole.choices, whole.estimates, whole.work = {}, {}, {}
                    self._estimate(source, whole, scratch, self._tune())
                self._estimate(source, whole, scratch, compiled.unbuilt)
            whole.seconds["estimate"] += time.perf_counter() - begin
        return whole

    def estimates(self, source: str, compiled: CompiledCandidate) -> Estimates:
        """Returns the estimate of each tune case.  Raises Stop if one cannot be made."""
        trial = dataclasses.replace(
            compiled, choices={}, work={}, estimates={}
        )  # other threads may be reading `compiled`
        with scratch_folder(self._root) as scratch:
            self._estimate(source, trial, scratch, self._tune())
        return trial.estimates

    @property
    def layers(self) -> Mapping[str, str]:
        """Layers of the sandbox on this machine: "active" or the reason why not."""
        return layers.available_layers()

    def close(self) -> None:
        if self._own_zygote:
            self._zygote.close()
        remove(self._root)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _gate(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        if not self.use_gate:
            return
        findings = self._findings(source)
        if self.task.lenient:
            findings = tuple(not_inherited(findings, self._of_seed))
        if findings:
            first = findings[0]
            verdict = Verdict.COMPILE_ERROR if first.rule == "syntax" else Verdict.REJECTED
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Stop("gate", verdict, f"line {first.line}: {first.message}{more}", findings)

    @cached_property
    def _of_seed(self) -> tuple[Finding, ...]:
        return self._findings(self.task.needed_seed)

    def _findings(self, source: str) -> tuple[Finding, ...]:
        return tuple(gate(source, entry=self.task.entry, allow_delegation=self.task.allow_delegation))

    def _record(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        """Records all cases.

        If only reduced cases fail, records without them: a size of 1 may raise beyond the task's own.
        """
        compiled.added = () if self._measured else self._added_of_baseline()
        needed = tuple(case for case in compiled.added if not case.reduced)
        try:
            self._record_calls(source, compiled, scratch)
        except Stop as stop:
            if stop.verdict is not Verdict.RUNTIME_ERROR or needed == compiled.added:
                raise
            compiled.added = needed
            self._record_calls(source, compiled, scratch)

    def _record_calls(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        described = self._calls.described()
        calls = [{"name": name, "args": described[name]} for name in self._recorded()]
        calls += [{"name": case.name, "args": self._calls.describe(case)} for case in compiled.added]
        added_names = [case.name for case in compiled.added]
        recorded = steps.record(source, self.task, calls, added=added_names, **self._in(scratch))
        compiled.plans, compiled.constants, compiled.layers = recorded.plans, recorded.constants, recorded.layers

    def _added_of_baseline(self) -> tuple[AddedCase, ...]:
        """Returns sizes beside the task's own: those at which the seed can be recorded, or the reference runs."""
        with self._lock:
            if self._added is None:
                plans_of = None if self.task.seed_source is None else self._plans_of_seed
                self._added = tuple(added_cases(self.task, plans_of))
            return self._added

    def _plans_of_seed(self, cases: Sequence[Case]) -> list[LaunchPlan | None]:
        """Returns the seed's plan for each case, None if the seed cannot be recorded at these sizes."""
        calls = [{"name": str(number), "args": self._calls.describe(case)} for number, case in enumerate(cases)]
        with scratch_folder(self._root) as scratch:
            try:
                plans = steps.record(self.task.needed_seed, self.task, calls, **self._in(scratch)).plans
            except Stop as stop:
                if stop.verdict is Verdict.INFRASTRUCTURE:
                    raise
                return [None] if len(cases) == 1 else [self._plans_of_seed([case])[0] for case in cases]
        return [plans[str(number)] for number in range(len(cases))]

    def _compile(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        """Compiles every configuration of every launch at the target's sizes, for the cases that are timed."""
        if source == self.task.seed_source:
            self._build(source, compiled, scratch, cases=self._at_target())
            self._seed_s, self._seed_plans = steps.slowest(compiled.builds), compiled.plans
            return
        self._compile_cases(source, compiled, scratch, self._tune(), label="build")
        compiled.unbuilt = tuple(name for name in self._at_target() if name not in compiled.builds)

    def _compile_cases(
        self, source: str, compiled: CompiledCandidate, scratch: Path, cases: Sequence[str], **how: Any
    ) -> None:
        """Compiles these cases.  Raises Stop also if one build takes far longer than the seed's."""
        seed_s = 0.0 if self.task.seed_source is None else self._slowest_of_seed(self.task.seed_source)
        most, slow = max(BUILD_S, TIMES_SEED * seed_s), seed_s > steps.SLOW_S
        try:
            self._build(source, compiled, scratch, cases=cases, build_s=most, slow=slow, **how)
        except Stop as stop:
            if stop.verdict is not Verdict.TIMEOUT:
                raise
            seed = f"; the slowest build of the seed took {seed_s:.1f} s" if seed_s else ""
            message = f"compiling {stop}{seed}: are its blocks too large?"
            raise Stop(stop.stage, stop.verdict, message) from stop

    def _slowest_of_seed(self, seed: str) -> float:
        """Returns CPU seconds.  A front end that shares a task with others may not have compiled the seed yet."""
        with self._lock:
            if self._seed_s is None:
                with scratch_folder(self._root) as scratch:
                    compiled = CompiledCandidate()
                    self._record(seed, compiled, scratch)
                    self._compile(seed, compiled, scratch)
            assert self._seed_s is not None  # known once the seed is compiled
            return self._seed_s

    def _build(self, source: str, compiled: CompiledCandidate, scratch: Path, **how: Any) -> None:
        """Adds builds to the candidate; a configuration that is left out is left out of all cases."""
        built = steps.build(source, compiled.plans, compiled.constants, cache=self._cache, **how, **self._in(scratch))
        for name, builds in built.builds.items():
            if why := screen.cooperative_problem(built.plans[name], builds, self.target):
                raise Stop("screen", Verdict.OUT_OF_MEMORY, f"case {name}: {why}")
        if self._measured:
            compiled.cubins = compiled.cubins | steps.cubins(built.builds, scratch)
        compiled.builds = steps.kept(compiled.builds, compiled.plans, built.plans) | built.builds
        compiled.plans, compiled.left_out = built.plans, (*compiled.left_out, *built.left_out)

    def _screen(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        """Hashes what is timed.  A candidate that differs in holdout cases alone is not faster."""
        compiled.plan_hash = screen.plan_hash(
            {name: (compiled.plans[name], compiled.builds[name]) for name in self._tune()}
        )

    def _estimate_timed(self, source: str, compiled: CompiledCandidate, scratch: Path) -> None:
        """Estimates what is compiled: the tune cases of a candidate, all cases of the seed."""
        self._estimate(source, compiled, scratch, [name for name in self._at_target() if name in compiled.builds])

    def _estimate(self, source: str, compiled: CompiledCandidate, scratch: Path, names: Sequence[str]) -> None:
        """Traces sampled programs of these cases at the target's sizes, and estimates the tune cases among them.

        The first call, which has all tune cases, chooses the configurations.
        """
        with scratch_folder(scratch) as own:
            traces = self._traced(source, compiled, names, own)
        if not compiled.choices:
            choice = self._choose(compiled, traces)
            for call, plan in compiled.plans.items():
                compiled.choices[call] = [choice.get((s.kernel, len(s.configs)), 0) for s in plan.launches]
        for case in (case for case in self.task.cases if case.name in names):
            try:
                self._judge(source, case, compiled, traces[case.name])
            except Stop as stop:
                extrapolated = any(t.extrapolates_stores for by_config in traces[case.name] for t in by_config)
                if stop.verdict is not Verdict.WRONG or not extrapolated:  # a closer look would find the same
                    raise
                with scratch_folder(scratch) as own:
                    closer = self._traced(source, compiled, [case.name], own, closer=True)
                self._judge(source, case, compiled, closer[case.name])

    def _judge(
        self, source: str, case: Case, compiled: CompiledCandidate, traces: Sequence[Sequence[LaunchTrace]]
    ) -> None:
        """Adds what the traces of a case say.  Raises Stop if they do not show all of its work."""
        name = case.name
        found = seen(compiled.plans[name], compiled.choices[name], traces)
        chosen = zip(compiled.choices[name], traces, strict=True)
        compiled.work[name] = [by_config[choice].work for choice, by_config in chosen]
        if source == self.task.seed_source:
            self._seen_of_seed[name] = found
        self._check_work(case, compiled, found)
        if case.role == "tune":
            compiled.estimates[name] = self._estimated(case, compiled, traces)

    def _check_work(self, case: Case, compiled: CompiledCandidate, found: Seen) -> None:
        """Raises Stop if the plan does not seem to do the case's work."""
        moved, computed = self._needed(case)
        if self.task.seed_source is None:
            expected = self._reference_plans[case.name]
            of_expected: Seen | None = seen_in_reference(expected)
            moved = of_expected.moved if moved is None else moved  # type: ignore[union-attr]
        else:
            expected, of_expected = self._seed_plans[case.name], self._seen_of_seed.get(case.name)
        skipped = coverage(
            compiled.plans[case.name],
            found,
            expected,
            of_expected,
            written=self.task.written,
            case_bytes=moved,
            case_flops=computed,
        )
        if skipped:
            skipped = f"case {case.name} at its full size: {skipped}"
            if found.met:
                skipped += "; it branches on what an atomic returns, which no estimate can follow: measure it on a GPU"
                raise Stop("estimate", Verdict.UNSUPPORTED, skipped)
            if found.truncated and not found.astray:
                skipped += "; a loop of it ends, or branches, in a way that no estimate can follow: measure it on a GPU"
                raise Stop("estimate", Verdict.UNSUPPORTED, skipped)
            raise Stop("estimate", Verdict.WRONG, skipped)

    def _estimated(
        self, case: Case, compiled: CompiledCandidate, traces: Sequence[Sequence[LaunchTrace]]
    ) -> model.Estimate:
        """Returns the estimate of a case.  Raises Stop if it is too good to be true."""
        name, plan = case.name, compiled.plans[case.name]
        found = model.estimate(plan, compiled.choices[name], compiled.builds[name], traces, self.target)
        limit_us = roofline.least_us(plan, *self._needed(case), self.target)
        if message := roofline.impossible(name, found.total_us, limit_us, self.target.device_name):
            raise Stop("estimate", Verdict.REJECTED, f"{message}: tracing it did not show all it does")
        return dataclasses.replace(found, work=attainable.traced(plan, compiled.choices[name], traces))

    def _needed(self, case: Case) -> tuple[float | None, float | None]:
        """Returns bytes and operations of a case, if the task says them."""
        moved, computed = self.task.bytes, self.task.flops
        return moved(case) if moved else None, computed(case) if computed else None

    def _traced(
        self, source: str, compiled: CompiledCandidate, names: Sequence[str], scratch: Path, *, closer: bool = False
    ) -> dict[str, Any]:
        """Returns what the trace of each case found; closer: of more programs.  Raises Stop."""
        payload = {
            "source": source,
            "constants": compiled.constants,
            "samples": PROGRAMS_SAMPLED,
            "closer": closer,
            "cases": [
                {"plan": to_json(compiled.plans[name]), "integers": self._calls.give_integers(name, scratch)}
                for name in names
            ],
        }
        value = expect_ok("estimate", self._zygote.run("trace", payload, scratch=scratch, limits=self.limits))
        found = (model.traces_from_json(case["launches"]) for case in value["cases"])
        return dict(zip(names, found, strict=True))

    def _choose(self, compiled: CompiledCandidate, traces: Mapping[str, Any]) -> dict[tuple[str, int], int]:
        """Returns one configuration per autotuned kernel: the least estimated time over all tune cases.

        Keyed by (kernel, number of configurations): a kernel launched at several places is frozen to one setting.
        """
        scores: dict[tuple[str, int], list[float]] = {}
        for name in self._tune():
            plan = compiled.plans[name]
            times = model.config_times(plan, compiled.builds[name], traces[name], self.target)
            for launch, by_config in zip(plan.launches, times, strict=True):
                total = scores.setdefault((launch.kernel, len(launch.configs)), [0.0] * len(launch.configs))
                for i, microseconds in enumerate(by_config):
                    log = math.log(microseconds) if microseconds is not None else math.inf
                    total[i] += self.task.weights[name] * log
        return {key: min(range(len(total)), key=total.__getitem__) for key, total in scores.items()}

    def _recorded(self) -> list[str]:
        """Names of the calls that are recorded."""
        return self._at_target() if self._measured else list(self._calls.described())

    def _at_target(self) -> list[str]:
        """Names of the calls at the target's sizes."""
        return [case.name for case in self.task.cases]

    def _tune(self) -> list[str]:
        return [case.name for case in self._calls.tune]

    def _in(self, scratch: Path) -> dict[str, Any]:
        """Returns the arguments that say how sandboxed steps are executed."""
        return {"zygote": self._zygote, "target": self.target.spec, "scratch": scratch, "limits": self.limits}
