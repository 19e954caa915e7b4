"""The way of a candidate, on a machine without a GPU: gate, record, compile, screen, estimate, verify.

`CpuEvaluator.evaluate` reads as the table in ARCHITECTURE.md.  Every stage hands facts to the next or raises Stop
with the verdict.
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
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evo import __version__
from evo.errors import EvoError, TaskError
from evo.records import Build, Candidate, Evaluation, Timing, Verdict
from fitness import estimate as model
from fitness import plan as plans_module
from fitness import sandbox, screen
from fitness.calls import Calls
from fitness.freeze import freeze
from fitness.gate import gate
from fitness.jobs import Limits
from fitness.plan import LaunchPlan, PlanError
from fitness.stages import Stop, expect_ok
from fitness.target import Target
from fitness.task import Task
from fitness.verify import verify
from fitness.zygote import Zygote

CPU = "@cpu"  # suffix of the plan of a case at the size it is executed at here
PROGRAMS_SAMPLED = 5  # per launch, for the estimate; what its constants were fitted with


@dataclass
class Facts:
    """What is known about a source before it is verified."""

    plans: dict[str, LaunchPlan] = field(default_factory=dict)  # by call name: every case, at both sizes
    constants: dict[str, Any] = field(default_factory=dict)  # globals the kernels use
    builds: dict[str, list[list[dict]]] = field(default_factory=dict)  # tune case -> launch -> configuration
    plan_hash: str = ""
    choices: dict[str, list[int]] = field(default_factory=dict)  # call name -> configuration of each launch
    estimates: dict[str, model.Estimate] = field(default_factory=dict)  # by tune case
    layers: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


class CpuEvaluator:
    """Evaluates candidates of one task for one target.  Thread-safe: several threads may evaluate at once."""

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        limits: Limits | None = None,
        use_gate: bool = True,
        zygote: Zygote | None = None,
    ) -> None:
        """`use_gate=False` is for testing that the later stages hold without the first; a `zygote` that is given is
        shared with others and not closed here.
        """
        self.task, self.target, self.limits = task, target, limits or Limits()
        self._use_gate = use_gate
        self._root = scratch_root()
        self._calls = Calls(task, self._root)
        self._own_zygote = zygote is None
        self._zygote = zygote or Zygote(target.name)
        self._baseline: dict[str, model.Estimate] | None = None
        self._memo: OrderedDict[str, Facts | Stop] = OrderedDict()
        self._lock = threading.Lock()

    # --- what the engine calls ---------------------------------------------------------------------------------------

    def prepare(self) -> Evaluation:
        """Evaluates the seed kernel, against which all others are compared.

        Raises TaskError where the seed does not pass its own task: nothing could be learnt from such a search.
        """
        seed = Candidate(self.task.seed_source)
        facts = self._facts(seed.source)
        if isinstance(facts, Stop):
            raise TaskError(_seed_message(self.task, facts.verdict, facts.stage, facts.message))
        self._baseline = facts.estimates
        evaluation = self.evaluate(seed, seed=0, known={})
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
        begin = time.perf_counter()
        try:
            with self._scratch() as scratch:
                check = verify(
                    self.task,
                    {c.name: facts.plans[c.name + CPU] for c in self.task.cases},
                    {c.name: facts.choices[c.name + CPU] for c in self.task.cases},
                    source=candidate.source,
                    constants=facts.constants,
                    seed=f"{candidate.id}:{seed}",
                    zygote=self._zygote,
                    scratch=scratch,
                    limits=self.limits,
                )
        except Stop as stop:
            return self._failure(candidate, stop, facts, verify_s=time.perf_counter() - begin)
        return Evaluation(
            candidate=candidate.id,
            verdict=Verdict.OK,
            stage="done",
            builds=self._chosen_builds(facts),
            check=check,
            timings=tuple(self._timing(name, e) for name, e in facts.estimates.items()),
            plan_hash=facts.plan_hash,
            frozen_source=freeze(candidate.source, self._tune_launches(facts)),
            seconds={**facts.seconds, "verify": time.perf_counter() - begin},
            environment=self._environment(facts),
        )

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """Estimated speedup over the seed for each source, without verification; None where there is no estimate."""
        results: list[float | None] = []
        for source in sources:
            facts = self._facts(source)
            if isinstance(facts, Stop):
                results.append(None)
                continue
            ratios = [self._ratio(name, e) for name, e in facts.estimates.items()]
            results.append(math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios)))
        return results

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and protections of this evaluator."""
        return MappingProxyType(_versions() | {"target": self.target.name, "sandbox": sandbox.available_layers()})

    def close(self) -> None:
        if self._own_zygote:
            self._zygote.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> CpuEvaluator:
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
            for stage in (self._gate, self._record, self._compile, self._screen, self._estimate):
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
        calls = [{"name": name, "args": args} for name, args in self._calls.described().items()]
        payload = {"source": source, "entry": self.task.entry, "target": self.target.name, "calls": calls}
        result = self._zygote.run("record", payload, scratch=scratch, limits=self.limits)
        facts.layers = result.layers
        value = expect_ok("record", result)
        try:
            facts.plans = {name: plans_module.from_json(raw) for name, raw in value["plans"].items()}
            facts.constants = dict(value["constants"])
        except (PlanError, KeyError, TypeError, AttributeError) as error:
            raise Stop("record", Verdict.RUNTIME_ERROR, f"the recorded plan does not hold together: {error}") from error
        missing = set(self._calls.described()) - set(facts.plans)
        if missing:
            raise Stop("record", Verdict.RUNTIME_ERROR, f"no plan was recorded for {', '.join(sorted(missing))}")
        for name, plan in facts.plans.items():
            self._check_work(name, plan)

    def _check_work(self, name: str, plan: LaunchPlan) -> None:
        if plan.delegated and not self.task.allow_delegation:
            ops = sorted({f"{op.name} (line {op.line})" for op in plan.delegated})
            message = f"work delegated to {', '.join(ops)}; compute it in the Triton kernel"
            raise Stop("record", Verdict.REJECTED, message)
        if not plan.launches:
            raise Stop("record", Verdict.REJECTED, f"case {name}: the entry launches no Triton kernel")

    def _compile(self, source: str, facts: Facts, scratch: Path) -> None:
        """Compiles every configuration of every launch of the tune cases at the target's sizes."""
        raw = {name: plans_module.to_json(facts.plans[name]) for name in self._tune()}
        launches = [
            {"kernel": step["launch"], "args": config["args"], "options": config["options"], "line": step["line"]}
            for plan in raw.values()
            for step in plan["steps"]
            if "launch" in step
            for config in step["configs"]
        ]
        payload = {
            "source": source, "constants": facts.constants, "target": self.target.name, "launches": launches,
        }  # fmt: skip
        value = expect_ok("compile", self._zygote.run("compile", payload, scratch=scratch, limits=self.limits))
        builds: Iterator[dict] = iter(value["builds"])
        for name in self._tune():
            facts.builds[name] = [[next(builds) for _ in launch.configs] for launch in facts.plans[name].launches]

    def _screen(self, source: str, facts: Facts, scratch: Path) -> None:
        """Refuses what the device cannot launch; gives the plan its hash."""
        for name in self._tune():
            for launch, builds in zip(facts.plans[name].launches, facts.builds[name], strict=True):
                problems = [screen.out_of_resources(build, self.target) for build in builds]
                if all(problems):
                    raise Stop("screen", Verdict.OUT_OF_MEMORY, f"kernel {launch.kernel}: {problems[0]}")
        facts.plan_hash = screen.plan_hash({name: (facts.plans[name], facts.builds[name]) for name in self._tune()})

    def _estimate(self, source: str, facts: Facts, scratch: Path) -> None:
        """Traces sampled programs at the target's sizes, chooses configurations, estimates each tune case."""
        traces: dict[str, Any] = {}
        for name in self._tune():
            payload = {
                "source": source,
                "constants": facts.constants,
                "plan": plans_module.to_json(facts.plans[name]),
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

    def _tune_launches(self, facts: Facts) -> dict[str, plans_module.Config]:
        """The chosen configuration of every autotuned kernel."""
        name = self._tune()[0]
        return {
            launch.kernel: launch.configs[i]
            for launch, i in zip(facts.plans[name].launches, facts.choices[name], strict=True)
            if launch.configs[i].label
        }

    def _chosen_builds(self, facts: Facts) -> tuple[Build, ...]:
        """One Build for each distinct machine code that the tune cases launch, in launch order."""
        fields = {f.name for f in dataclasses.fields(Build)}
        found: dict[str, Build] = {}
        for name in self._tune():
            for by_config, i in zip(facts.builds[name], facts.choices[name], strict=True):
                build = Build(**{k: v for k, v in by_config[i].items() if k in fields})
                found.setdefault(build.sass_hash, build)
        return tuple(found.values())

    def _ratio(self, case: str, estimate: model.Estimate) -> float:
        if self._baseline is None:
            raise EvoError("the evaluator has no baseline yet: call prepare() before evaluate() or screen()")
        return self._baseline[case].total_us / estimate.total_us

    def _timing(self, case: str, estimate: model.Estimate) -> Timing:
        ratio = self._ratio(case, estimate)
        assert self._baseline is not None
        return Timing(
            case=case,
            samples_us=(estimate.total_us,),
            baseline_us=(self._baseline[case].total_us,),
            ratio=ratio,
            ci95=model.interval(ratio),
            estimated=True,
            terms=dict(estimate.terms),
        )

    def _failure(
        self, candidate: Candidate, stop: Stop, facts: Facts, *, duplicate_of: str = "", verify_s: float | None = None
    ) -> Evaluation:
        return Evaluation(
            candidate=candidate.id,
            verdict=stop.verdict,
            stage=stop.stage,
            message=stop.message,
            findings=stop.findings,
            builds=self._chosen_builds(facts) if facts.choices else (),
            plan_hash=facts.plan_hash,
            duplicate_of=duplicate_of,
            seconds=facts.seconds | ({} if verify_s is None else {"verify": verify_s}),
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
