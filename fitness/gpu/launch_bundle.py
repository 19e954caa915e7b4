"""Records a source and compiles it, in sandboxed children: from source to launch plans and machine code."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from evo.core.records import Build, Verdict
from evo.core.text import short
from fitness.frontend.build_cache import BuildCache, build_key, cubin_of
from fitness.frontend.kernels import KernelSource, kernel_sources
from fitness.frontend.plan import MOST_TUNED, Launch, LaunchPlan, from_json, to_json, too_many_tuned
from fitness.frontend.result_validation import validated_build
from fitness.frontend.screen import out_of_resources
from fitness.frontend.stages import Stop, at_line, expect_ok
from fitness.frontend.target import Target, from_spec
from fitness.gpu.runner import LaunchBundle
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import scratch_folder
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task

# Jobs of one candidate at once, one a CPU. With fewer CPUs there are as many jobs: otherwise the machine would decide
# which builds share a time limit and which of two errors is reported.  More gain little: other candidates are compiled
# too.
COMPILE_JOBS = 8
CONFIGS_A_JOB = 2  # for fewer, starting another process costs more than it gains
# But a build that takes this many seconds has a job of its own, and one candidate may fill a machine.
SLOW_S, SLOW_JOBS = 2.0, 32

# case -> launch -> configuration: items of `fitness.frontend.compile.job`
Builds = dict[str, list[list[dict[str, Any]]]]

# A kernel, the number of its configurations and which of them: one choice holds for all launches and cases.
Way = tuple[str, int, int]


@dataclass(frozen=True)
class Built:
    """The builds of some plans, and these plans without the configurations that cannot be compiled."""

    plans: dict[str, LaunchPlan]  # without the configurations that cannot be compiled
    builds: Builds
    left_out: tuple[str, ...]  # those configurations, and why


class Unbuildable(Stop):
    """No configuration of a kernel can be compiled and launched; Triton's autotuner tolerates each of the reasons."""

    def __init__(self, kernel: str, problem: str, line: int, *, compiled: bool) -> None:
        if compiled:
            super().__init__("screen", Verdict.OUT_OF_MEMORY, f"kernel {kernel}: {problem}")
        else:
            super().__init__("compile", Verdict.COMPILE_ERROR, *at_line("compile", problem, line))
        self.kernel = kernel


@dataclass(frozen=True)
class Recorded:
    """What one run of the host code gave: a plan for each call, globals the kernels use, sandbox layers."""

    plans: dict[str, LaunchPlan]
    constants: dict[str, Any]
    layers: tuple[str, ...]


def record(
    source: str,
    task: Task,
    calls: Sequence[Mapping[str, Any]],
    *,
    zygote: Zygote,
    target: str,
    scratch: Path,
    limits: Limits,
    added: Collection[str] = (),
) -> Recorded:
    """Returns the plans of `source` for `calls` (name and described arguments, for `fitness.frontend.recording.job`).

    added: names of calls at sizes that the task does not have.  A plan may be empty there: verification finds it wrong.

    Raises Stop with the verdict, also if a plan leaves the work to others than the candidate's own kernels.  The job
    has a folder of its own in `scratch`: the candidate's host code may leave anything there.
    """
    payload = {"source": source, "entry": task.entry, "target": target, "calls": list(calls)}
    with scratch_folder(scratch) as own:
        result = zygote.run("record", payload, scratch=own, limits=limits)
    value = expect_ok("record", result)
    try:
        plans = {name: from_json(raw) for name, raw in value["plans"].items()}
        constants = dict(value["constants"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Stop("record", Verdict.RUNTIME_ERROR, f"the recorded plan does not hold together: {error}") from error
    missing = {call["name"] for call in calls} - set(plans)
    if missing:
        raise Stop("record", Verdict.RUNTIME_ERROR, f"no plan was recorded for {', '.join(sorted(missing))}")
    for name, plan in plans.items():
        if plan.steps or name not in added:
            _check_work(task, name, plan)
    return Recorded(plans, constants, result.layers)


def _check_work(task: Task, name: str, plan: LaunchPlan) -> None:
    if plan.delegated and not task.allow_delegation:
        ops = sorted({f"{op.name} (line {op.line})" for op in plan.delegated})
        message = f"work delegated to {', '.join(ops)}; compute it in the Triton kernel"
        raise Stop("record", Verdict.REJECTED, message)
    if plan.tuned > MOST_TUNED:  # the recorder, which is not trusted, ends before
        raise Stop("record", Verdict.UNSUPPORTED, f"case {name}: {too_many_tuned(plan.tuned)}")
    if not plan.launches:
        raise Stop("record", Verdict.REJECTED, f"case {name}: the entry launches no Triton kernel")


def build(
    source: str,
    plans: Mapping[str, LaunchPlan],
    constants: Mapping[str, Any],
    *,
    zygote: Zygote,
    target: str,
    scratch: Path,
    limits: Limits,
    cache: BuildCache | None = None,
    cases: Collection[str] | None = None,
    build_s: float | None = None,
    slow: bool = False,
    machine_code: bool = True,
    label: str = "build",
) -> Built:
    """Compiles every configuration of every launch of `plans`, or of those `cases`; leaves the cubins in `scratch`.

    cache: builds that are not compiled again; new ones are added; build_s: CPU seconds that one build may take, if less
    than `limits` say; slow: whether one takes long; machine_code: whether builds have any (`fitness.frontend.compile`);
    label: the beginning of the names of cubins.

    Many configurations are compiled side by side.  One after the other, those of an autotuned kernel of tensor cores
    would take longer than a candidate may.  Of equal launches one is compiled.

    A configuration that Triton's autotuner would treat as infinitely slow is left out of all plans: one that cannot be
    compiled, or needs more than the target has, at any launch.  Raises Stop: Unbuildable if that leaves a kernel
    without any.
    """
    compiled = {name: plan for name, plan in plans.items() if cases is None or name in cases}
    kernels = kernel_sources(source)
    launches, ways = _launches(compiled)
    cache = cache or BuildCache()
    keys = [build_key(kernels, constants, target, launch, machine_code=machine_code) for launch in launches]
    firsts = _firsts(keys)
    different = sorted(set(firsts))
    left = cache.left_in(scratch, [keys[i] for i in different])
    built = {different[place]: build for place, build in left.items()}
    if unknown := [i for i in different if i not in built]:
        job = _Job(source, constants, launches, zygote, target, limits, build_s, machine_code)
        new = _compiled(job, _parts(launches, kernels, unknown), scratch, slow, label)
        with _sound():
            cache.add(scratch, {keys[i]: b for i, b in new.items()})
        built |= new
    return _assembled(plans, compiled, launches, ways, [built[first] for first in firsts], kernels, target)


@dataclass(frozen=True)
class _Job:
    """Compiles groups of `launches`, given by their numbers, in one sandboxed child; a group shares a build."""

    source: str
    constants: Mapping[str, Any]
    launches: Sequence[Mapping[str, Any]]
    zygote: Zygote
    target: str
    limits: Limits
    build_s: float | None  # CPU seconds that one build may take, if less than `limits` say
    machine_code: bool

    def __call__(self, folder: Path, parts: Sequence[Sequence[int]]) -> list[tuple[int, dict[str, Any]]]:
        """Returns the builds of these groups, each with its launch.  Makes `folder`, for the cubins.  Raises Stop."""
        folder.mkdir()
        wanted = [i for part in parts for i in part]
        payload: dict[str, Any] = {"source": self.source, "constants": dict(self.constants), "target": self.target}
        payload["launches"] = [self.launches[i] for i in wanted]
        payload |= {"machine_code": self.machine_code, "build_s": self.build_s}
        result = self.zygote.run("compile", payload, scratch=folder, limits=self._limits(len(parts)))
        value = expect_ok("compile", result)
        with _sound():
            answers = zip(wanted, value["builds"], strict=True)
            return [(i, _from(folder, b, self.launches[i], self.target, self.machine_code)) for i, b in answers]

    def _limits(self, builds: int) -> Limits:
        if self.build_s is None:
            return self.limits
        return replace(self.limits, cpu_s=min(self.limits.cpu_s, ceil(builds * self.build_s)))


def _compiled(
    job: _Job, parts: Sequence[Sequence[int]], scratch: Path, slow: bool, label: str
) -> dict[int, dict[str, Any]]:
    """Returns the builds of groups of launches, by the launch's number, from several jobs at once.  Raises Stop."""
    a_job, most = (1, SLOW_JOBS) if slow else (CONFIGS_A_JOB, COMPILE_JOBS)
    jobs = _dealt(parts, a_job, most)
    taken = len(list(scratch.glob(f"{label}*")))  # by earlier builds
    folders = [scratch / f"{label}{taken + number}" for number in range(len(jobs))]
    with ThreadPoolExecutor(min(len(jobs), len(os.sched_getaffinity(0)))) as threads:
        return dict(pair for pairs in threads.map(job, folders, jobs) for pair in pairs)


def _assembled(
    plans: Mapping[str, LaunchPlan],
    compiled: Collection[str],
    launches: Sequence[Mapping[str, Any]],
    ways: Sequence[Way],
    built: Sequence[dict[str, Any]],
    kernels: Mapping[str, KernelSource],
    target: str,
) -> Built:
    """Returns plans and builds without the configurations that cannot be compiled.

    compiled: names of the cases that `launches` are of, in their order; built: the build of each launch.
    Raises Unbuildable if that leaves a kernel without any.
    """
    problems = {i: why for i, b in enumerate(built) if (why := _problem(b, from_spec(target)))}
    left_out = _left_out(launches, ways, built, problems, kernels)
    fewer = {name: _without(plan, left_out) for name, plan in plans.items()}
    in_order = (b for b, way in zip(built, ways, strict=True) if way not in left_out)
    builds = {name: [[next(in_order) for _ in launch.configs] for launch in fewer[name].launches] for name in compiled}
    return Built(fewer, builds, tuple(left_out.values()))


@contextmanager
def _sound() -> Iterator[None]:
    """Checks that what a compile job answered and left is well-formed.

    Kernels are Python there, so it may be anything.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Stop("compile", Verdict.RUNTIME_ERROR, f"its builds do not hold together: {error!r}") from error


def _from(folder: Path, answer: Any, launch: Mapping[str, Any], target: str, machine_code: bool) -> dict[str, Any]:
    """Returns the build of a launch by a job in that folder, relative to its parent.  Raises as `validated_build`."""
    build = validated_build(answer, launch["kernel"], from_spec(target), machine_code=machine_code)
    return {**build, "cubin": f"{folder.name}/{build['cubin']}"} if "cubin" in build else build


def as_record(build: Mapping[str, Any]) -> Build:
    """Returns the part of a compile job's build that a run stores."""
    stored = {field.name for field in fields(Build)}
    instructions = {name: count for name, count in build.get("ptx_features", {}).items() if count}
    return Build(**{name: value for name, value in build.items() if name in stored}, instructions=instructions)


def _launches(plans: Mapping[str, LaunchPlan]) -> tuple[list[dict[str, Any]], list[Way]]:
    """Returns all launches in the form of a compile job (and more), and the configuration key of each."""
    launches: list[dict[str, Any]] = []
    ways: list[Way] = []
    for plan in plans.values():
        for step in to_json(plan)["steps"]:
            configs = step["configs"] if "launch" in step else ()
            for number, config in enumerate(configs):
                launches.append({"kernel": step["launch"], "line": step["line"], **config})
                ways.append((step["launch"], len(configs), number))
    return launches, ways


def _firsts(keys: Sequence[str]) -> list[int]:
    """Returns for each launch the place of the first one with the same build; unknown builds are their own."""
    first: dict[str, int] = {}
    return [first.setdefault(key, i) if key else i for i, key in enumerate(keys)]


# --- what differs ----------------------------------------------------------------------------------------------------


def _parts(
    launches: Sequence[Mapping[str, Any]], kernels: Mapping[str, KernelSource], chosen: Iterable[int]
) -> list[list[int]]:
    """Returns the chosen launches in groups for one job each: those that may share a build, which a job compiles once.

    Launches of a kernel do not share a build if its constexpr parameters (such as sizes) or options differ.
    """
    parts: dict[tuple, list[int]] = {}
    for i in chosen:
        kernel, args, options = (launches[i][key] for key in ("kernel", "args", "options"))
        fixed = kernels[kernel].constexprs if kernel in kernels else ()
        values = {name: value for name, value in args.items() if name in fixed}
        parts.setdefault((kernel, json.dumps([values, options], sort_keys=True)), []).append(i)
    return list(parts.values())


def _dealt(parts: Sequence[Sequence[int]], a_job: int, most: int) -> list[list[Sequence[int]]]:
    """Deals the groups to at most `most` jobs, each of `a_job` or more; neighbours among configurations are alike.

    Each round begins with another job: the same configuration of other cases may be alike too.
    """
    count = min(-(-len(parts) // a_job), most)
    jobs: list[list[Sequence[int]]] = [[] for _ in range(count)]
    for number, part in enumerate(parts):
        jobs[(number + number // count) % count].append(part)
    return jobs


# --- what cannot be had ----------------------------------------------------------------------------------------------


def _problem(build: Mapping[str, Any], target: Target) -> str | None:
    return build["problem"] if "problem" in build else out_of_resources(build, target)


def _left_out(
    launches: Sequence[Mapping[str, Any]],
    ways: Sequence[Way],
    built: Sequence[Mapping[str, Any]],
    problems: Mapping[int, str],
    kernels: Mapping[str, KernelSource],
) -> dict[Way, str]:
    """Returns the configurations of which a launch has a problem, and which.

    Raises Unbuildable if a kernel has no other.
    """
    found: dict[Way, int] = {}
    for i, way in enumerate(ways):
        if i in problems:
            found.setdefault(way, i)
    for (kernel, count, _), i in found.items():
        if all((kernel, count, number) in found for number in range(count)):
            own = built[i].get("line", 0)
            line = kernels[kernel].line + own - 1 if own else 0
            raise Unbuildable(kernel, problems[i], line, compiled="problem" not in built[i])
    return {way: short(f"{launches[i]['label']}: {problems[i].splitlines()[0]}") for way, i in found.items()}


def _without(plan: LaunchPlan, left_out: Collection[Way]) -> LaunchPlan:
    steps = (_fewer(step, left_out) if isinstance(step, Launch) else step for step in plan.steps)
    return replace(plan, steps=tuple(steps)) if left_out else plan


def _fewer(launch: Launch, left_out: Collection[Way]) -> Launch:
    count = len(launch.configs)
    left = (c for number, c in enumerate(launch.configs) if (launch.kernel, count, number) not in left_out)
    return replace(launch, configs=tuple(left))


def kept(builds: Builds, before: Mapping[str, LaunchPlan], after: Mapping[str, LaunchPlan]) -> Builds:
    """Returns the builds of plans `before` whose configurations are still in the plans `after`."""
    found: Builds = {}
    for name, by_launch in builds.items():
        launches = zip(before[name].launches, after[name].launches, by_launch, strict=True)
        found[name] = [
            [b for config, b in zip(old.configs, by_config, strict=True) if any(config is c for c in new.configs)]
            for old, new, by_config in launches
        ]
    return found


def slowest(builds: Builds) -> float:
    """Returns the seconds that compiling the slowest of them took."""
    return max(b["compile_s"] for case in builds.values() for launch in case for b in launch)


def cubins(builds: Builds, scratch: Path) -> dict[str, bytes]:
    """Returns the machine code that `build` left in `scratch`, by the "cubin" of the builds."""
    found = {b["cubin"]: b for case in builds.values() for launch in case for b in launch}
    with _sound():
        return {name: cubin_of(scratch, b) for name, b in found.items()}


def make_bundle(
    source: str,
    task: Task,
    calls: Sequence[Mapping[str, Any]],
    *,
    zygote: Zygote,
    target: str,
    scratch: Path,
    limits: Limits,
) -> LaunchBundle:
    """Records and compiles `source` for `calls`, with every configuration left to choose from.  Raises Stop."""
    recorded = record(source, task, calls, zygote=zygote, target=target, scratch=scratch, limits=limits)
    built = build(
        source, recorded.plans, recorded.constants, zygote=zygote, target=target, scratch=scratch, limits=limits
    )
    return LaunchBundle(built.plans, built.builds, cubins(built.builds, scratch))
