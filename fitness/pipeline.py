"""What all evaluators share: the stages before a candidate is judged, and how what was found becomes an Evaluation.

Gate, record, compile and screen, in the order of the table in ARCHITECTURE.md.  Every stage hands facts to the next or
raises Stop with the verdict.  How a candidate is verified and timed is the business of the classes derived from
`Evaluator`: `fitness/evaluator.py` (no GPU: executed by the interpreter, times from a model) and
`fitness/gpu_evaluator.py` (verified and timed on a GPU).
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shutil
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from evo import __version__
from evo.errors import EvoError, TaskError
from evo.records import Build, Candidate, Check, Evaluation, Timing, Verdict
from fitness import estimate as model
from fitness import sandbox, screen
from fitness import work as steps
from fitness.calls import Calls
from fitness.freeze import freeze
from fitness.gate import gate
from fitness.jobs import Limits
from fitness.plan import Config, LaunchPlan, to_json
from fitness.stages import Stop, expect_ok
from fitness.target import Target
from fitness.task import Task
from fitness.zygote import Zygote

PROGRAMS_SAMPLED = 5  # per launch, for the estimate; what its constants were fitted with

Choices = Mapping[str, Sequence[int]]  # call name -> configuration of each launch


@dataclass
class Facts:
    """What is known about a source before it is verified."""

    plans: dict[str, LaunchPlan] = field(default_factory=dict)  # by call name
    constants: dict[str, Any] = field(default_factory=dict)  # globals the kernels use
    builds: steps.Builds = field(default_factory=dict)  # of the compiled cases
    cubins: dict[str, bytes] = field(default_factory=dict)  # machine code, where it is going to be launched
    plan_hash: str = ""
    choices: dict[str, list[int]] = field(default_factory=dict)  # of the estimate
    estimates: dict[str, model.Estimate] = field(default_factory=dict)  # by tune case
    layers: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A candidate that is right, and how fast it is."""

    check: Check
    timings: tuple[Timing, ...]
    choices: Choices
    note: str = ""  # what is worth knowing beside the verdict


class Evaluator(ABC):
    """Evaluates candidates of one task for one target.  Thread-safe: several threads may evaluate at once."""

    judging: str  # the stage that `_judge` spends its time in

    def __init__(
        self, task: Task, target: Target, limits: Limits | None, use_gate: bool, zygote: Zygote | None
    ) -> None:
        self.task, self.target, self.limits = task, target, limits or Limits()
        self._use_gate = use_gate
        self._root = scratch_root()
        self._calls = Calls(task, self._root)
        self._own_zygote = zygote is None
        self._zygote = zygote or Zygote(target.name)
        self._baseline: dict[str, model.Estimate] | None = None
        self._memo: OrderedDict[str, Facts | Stop] = OrderedDict()
        self._lock = threading.Lock()

    # --- what differs ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _recorded(self) -> list[str]:
        """Names of the calls that are recorded."""

    @abstractmethod
    def _compiled(self) -> list[str]:
        """Names of the recorded calls that are compiled."""

    @abstractmethod
    def _stages(self) -> Sequence[Callable[[str, Facts, Path], None]]:
        """What is done with a source before it is judged."""

    @abstractmethod
    def _estimates(self, source: str, facts: Facts) -> dict[str, model.Estimate]:
        """The estimate of each tune case.  Raises Stop where there is none."""

    @abstractmethod
    def _judge_seed(self, seed: Candidate, facts: Facts) -> Judged:
        """`_judge` for the seed, which becomes the baseline."""

    @abstractmethod
    def _judge(self, candidate: Candidate, facts: Facts, key: str) -> Judged:
        """Verifies and times; `key` keys the inputs.  Raises Stop with the verdict."""

    # --- what the engine calls ---------------------------------------------------------------------------------------

    def prepare(self) -> Evaluation:
        """Evaluates the seed kernel, against which all others are compared.

        Raises TaskError where the seed does not pass its own task: nothing could be learnt from such a search.
        """
        seed = Candidate(self.task.seed_source)
        facts = self._facts(seed.source)
        if isinstance(facts, Stop):
            raise TaskError(_seed_message(self.task, facts.verdict, facts.stage, facts.message))
        evaluation = self._judged(seed, facts, lambda: self._judge_seed(seed, facts))
        if evaluation.verdict is not Verdict.OK:
            raise TaskError(_seed_message(self.task, evaluation.verdict, evaluation.stage, evaluation.message))
        return evaluation

    def evaluate(self, candidate: Candidate, *, seed: int, known: Mapping[str, str]) -> Evaluation:
        """The verdict on `candidate`.  `seed` keys the inputs; `known` maps plan hashes to evaluated candidates."""
        facts = self._facts(candidate.source)
        if isinstance(facts, Stop):
            return self._failure(candidate, facts, Facts())
        twin = known.get(facts.plan_hash)
        if twin is not None and twin != candidate.id:
            message = f"same machine code, grids and arguments as candidate {twin}"
            return self._failure(candidate, Stop("screen", Verdict.DUPLICATE, message), facts, duplicate_of=twin)
        return self._judged(candidate, facts, lambda: self._judge(candidate, facts, f"{candidate.id}:{seed}"))

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """Estimated speedup over the seed for each source, without verification; None where there is no estimate."""
        return [self._estimated_speedup(source) for source in sources]

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and protections of this evaluator."""
        return MappingProxyType(_versions() | {"target": self.target.name, "sandbox": sandbox.available_layers()})

    def close(self) -> None:
        if self._own_zygote:
            self._zygote.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- stages ------------------------------------------------------------------------------------------------------

    def _facts(self, source: str) -> Facts | Stop:
        """All stages before verification; remembered, because a screened source is often evaluated next."""
        with self._lock:
            if source in self._memo:
                self._memo.move_to_end(source)
                return self._memo[source]
        try:
            result: Facts | Stop = self._collect(source)
        except Stop as stop:
            result = stop
        if not (isinstance(result, Stop) and result.verdict is Verdict.INFRASTRUCTURE):
            with self._lock:
                self._memo[source] = result
                while len(self._memo) > 128:
                    self._memo.popitem(last=False)
        return result

    def _collect(self, source: str) -> Facts:
        facts = Facts()
        with self._scratch() as scratch:
            for stage in self._stages():
                begin = time.perf_counter()
                stage(source, facts, scratch)
                facts.seconds[stage.__name__.strip("_")] = time.perf_counter() - begin
        return facts

    def _gate(self, source: str, facts: Facts, scratch: Path) -> None:
        if not self._use_gate:
            return
        findings = tuple(gate(source, entry=self.task.entry, allow_delegation=self.task.allow_delegation))
        if findings:
            first = findings[0]
            verdict = Verdict.COMPILE_ERROR if first.rule == "syntax" else Verdict.REJECTED
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Stop("gate", verdict, f"line {first.line}: {first.message}{more}", findings)

    def _record(self, source: str, facts: Facts, scratch: Path) -> None:
        described = self._calls.described()
        calls = [{"name": name, "args": described[name]} for name in self._recorded()]
        recorded = steps.record(source, self.task, calls, **self._in(scratch))
        facts.plans, facts.constants, facts.layers = recorded.plans, recorded.constants, recorded.layers

    def _compile(self, source: str, facts: Facts, scratch: Path) -> None:
        """Compiles every configuration of every launch at the target's sizes."""
        plans = {name: facts.plans[name] for name in self._compiled()}
        facts.builds = steps.build(source, plans, facts.constants, **self._in(scratch))

    def _screen(self, source: str, facts: Facts, scratch: Path) -> None:
        """Refuses what the device cannot launch; gives the plan its hash."""
        for name in self._compiled():
            for launch, builds in zip(facts.plans[name].launches, facts.builds[name], strict=True):
                problems = [screen.out_of_resources(build, self.target) for build in builds]
                if all(problems):
                    raise Stop("screen", Verdict.OUT_OF_MEMORY, f"kernel {launch.kernel}: {problems[0]}")
        facts.plan_hash = screen.plan_hash({name: (facts.plans[name], facts.builds[name]) for name in self._compiled()})

    def _estimate(self, source: str, facts: Facts, scratch: Path) -> None:
        """Traces sampled programs at the target's sizes, chooses configurations, estimates each tune case."""
        traces: dict[str, Any] = {}
        for name in self._tune():
            payload = {
                "source": source,
                "constants": facts.constants,
                "plan": to_json(facts.plans[name]),
                "samples": PROGRAMS_SAMPLED,
                "integers": self._calls.link_integers(name, scratch),
            }
            value = expect_ok("estimate", self._zygote.run("trace", payload, scratch=scratch, limits=self.limits))
            traces[name] = model.traces_from_json(value["launches"])
        choice = self._choose(facts, traces)
        for call, plan in facts.plans.items():
            facts.choices[call] = [choice.get((s.kernel, len(s.configs)), 0) for s in plan.launches]
        for case in self._calls.tune:
            name, plan = case.name, facts.plans[case.name]
            case_bytes = self.task.bytes(case) if self.task.bytes else None
            skipped = model.coverage(plan, facts.choices[name], traces[name], case_bytes)
            if skipped:
                raise Stop("estimate", Verdict.WRONG, f"case {name} at its full size: {skipped}")
            facts.estimates[name] = model.estimate(
                plan, facts.choices[name], facts.builds[name], traces[name], self.target
            )

    def _choose(self, facts: Facts, traces: Mapping[str, Any]) -> dict[tuple[str, int], int]:
        """One configuration per autotuned kernel: the one with the least estimated time over all tune cases.

        Keyed by (kernel, number of configurations): a kernel launched at several places is frozen to one setting.
        """
        scores: dict[tuple[str, int], list[float]] = {}
        for name in self._tune():
            plan = facts.plans[name]
            times = model.config_times(plan, facts.builds[name], traces[name], self.target)
            for launch, by_config in zip(plan.launches, times, strict=True):
                total = scores.setdefault((launch.kernel, len(launch.configs)), [0.0] * len(launch.configs))
                for i, microseconds in enumerate(by_config):
                    total[i] += math.log(microseconds) if microseconds is not None else math.inf
        return {key: min(range(len(total)), key=total.__getitem__) for key, total in scores.items()}

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _tune(self) -> list[str]:
        return [case.name for case in self._calls.tune]

    def _in(self, scratch: Path) -> dict[str, Any]:
        """Where sandboxed steps are executed."""
        return {"zygote": self._zygote, "target": self.target.name, "scratch": scratch, "limits": self.limits}

    def _ratio(self, case: str, estimate: model.Estimate) -> float:
        if self._baseline is None:
            raise EvoError("the evaluator has no baseline yet: call prepare() before evaluate() or screen()")
        return self._baseline[case].total_us / estimate.total_us

    def _estimated_speedup(self, source: str) -> float | None:
        facts = self._facts(source)
        if isinstance(facts, Stop):
            return None
        try:
            estimates = self._estimates(source, facts)
        except Stop:
            return None
        ratios = [self._ratio(name, e) for name, e in estimates.items()]
        return math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios))

    def _judged(self, candidate: Candidate, facts: Facts, judge: Callable[[], Judged]) -> Evaluation:
        begin = time.perf_counter()
        try:
            judged = judge()
        except Stop as stop:
            return self._failure(candidate, stop, facts, judged_s=time.perf_counter() - begin)
        return Evaluation(
            candidate=candidate.id,
            verdict=Verdict.OK,
            stage="done",
            message=judged.note,
            builds=self._chosen_builds(facts, judged.choices),
            check=judged.check,
            timings=judged.timings,
            plan_hash=facts.plan_hash,
            frozen_source=freeze(candidate.source, self._chosen_configs(facts, judged.choices)),
            seconds=facts.seconds | {self.judging: time.perf_counter() - begin},
            environment=self._environment(facts),
        )

    def _chosen_configs(self, facts: Facts, choices: Choices) -> dict[str, Config]:
        """The chosen configuration of every autotuned kernel."""
        name = self._tune()[0]
        return {
            launch.kernel: launch.configs[i]
            for launch, i in zip(facts.plans[name].launches, choices[name], strict=True)
            if launch.configs[i].label
        }

    def _chosen_builds(self, facts: Facts, choices: Choices) -> tuple[Build, ...]:
        """One Build for each distinct machine code that the tune cases launch, in launch order."""
        fields = {f.name for f in dataclasses.fields(Build)}
        found: dict[str, Build] = {}
        for name in self._tune():
            for by_config, i in zip(facts.builds[name], choices[name], strict=True):
                build = Build(**{k: v for k, v in by_config[i].items() if k in fields})
                found.setdefault(build.sass_hash, build)
        return tuple(found.values())

    def _failure(
        self, candidate: Candidate, stop: Stop, facts: Facts, *, duplicate_of: str = "", judged_s: float | None = None
    ) -> Evaluation:
        return Evaluation(
            candidate=candidate.id,
            verdict=stop.verdict,
            stage=stop.stage,
            message=stop.message,
            findings=stop.findings,
            builds=self._chosen_builds(facts, facts.choices) if facts.choices else (),
            plan_hash=facts.plan_hash,
            duplicate_of=duplicate_of,
            seconds=facts.seconds | ({} if judged_s is None else {self.judging: judged_s}),
            environment=self._environment(facts),
        )

    def _environment(self, facts: Facts) -> dict[str, Any]:
        return {"target": self.target.name, "sandbox": list(facts.layers)}

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _seed_message(task: Task, verdict: Verdict, stage: str, message: str) -> str:
    return (
        f"task {task.name!r}: its own kernel.py must pass before a search makes sense, but it was found "
        f"{verdict} at stage {stage}: {message}. Mend kernel.py, the reference or the tolerance."
    )


def scratch_root() -> Path:
    """A new folder for scratch files; those of processes that were killed before they could tidy up are removed."""
    for folder in Path(tempfile.gettempdir()).glob("evo-scratch-*"):
        pid = folder.name.split("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"evo-scratch-{os.getpid()}-"))


def _versions() -> dict[str, str]:
    import torch
    import triton

    return {
        "evo": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "machine": platform.machine(),
    }
