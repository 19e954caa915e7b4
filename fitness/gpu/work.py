"""From a source to launch plans and machine code: recorded and compiled in sandboxed children."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from evo.records import Verdict
from fitness.compilation.kernels import closures
from fitness.gpu.runner import Work
from fitness.plan import LaunchPlan, PlanError, from_json, to_json
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.stages import Stop, expect_ok
from fitness.task import Task

CONFIGS_A_JOB = 2  # for fewer, starting another process costs more than it gains
COMPILE_JOBS = 4  # of one candidate at once

Builds = dict[
    str, list[list[dict[str, Any]]]
]  # case -> launch -> configuration: items of `fitness.compilation.compile.job`


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
) -> Recorded:
    """The plans of `source` for `calls` (name and described arguments, as `record.job` takes them).

    Raises Stop with the verdict, also where a plan leaves the work to others than the candidate's own kernels.
    """
    payload = {"source": source, "entry": task.entry, "target": target, "calls": list(calls)}
    result = zygote.run("record", payload, scratch=scratch, limits=limits)
    value = expect_ok("record", result)
    try:
        plans = {name: from_json(raw) for name, raw in value["plans"].items()}
        constants = dict(value["constants"])
    except (PlanError, KeyError, TypeError, AttributeError) as error:
        raise Stop("record", Verdict.RUNTIME_ERROR, f"the recorded plan does not hold together: {error}") from error
    missing = {call["name"] for call in calls} - set(plans)
    if missing:
        raise Stop("record", Verdict.RUNTIME_ERROR, f"no plan was recorded for {', '.join(sorted(missing))}")
    for name, plan in plans.items():
        _check_work(task, name, plan)
    return Recorded(plans, constants, result.layers)


def _check_work(task: Task, name: str, plan: LaunchPlan) -> None:
    if plan.delegated and not task.allow_delegation:
        ops = sorted({f"{op.name} (line {op.line})" for op in plan.delegated})
        message = f"work delegated to {', '.join(ops)}; compute it in the Triton kernel"
        raise Stop("record", Verdict.REJECTED, message)
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
    known: KnownBuilds | None = None,
) -> Builds:
    """Every configuration of every launch of `plans`, compiled; the cubins are left in `scratch`.  Raises Stop.

    Many configurations are compiled side by side: those of an autotuned kernel of tensor cores would take longer than a
    candidate may, one after the other.  What is `known` is not compiled again, and what is new is known afterwards.
    """
    launches, parts = _launches(plans)
    known = known or KnownBuilds()
    keys = known.keys(source, constants, target, launches)
    built = known.left_in(scratch, keys)
    parts = [part for every in parts if (part := [i for i in every if i not in built])]

    def compiled(folder: Path, part: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
        folder.mkdir()
        chosen = [launches[i] for i in part]
        payload = {"source": source, "constants": dict(constants), "target": target, "launches": chosen}
        found = expect_ok("compile", zygote.run("compile", payload, scratch=folder, limits=limits))["builds"]
        return [(i, {**b, "cubin": f"{folder.name}/{Path(b['cubin']).name}"}) for i, b in zip(part, found, strict=True)]

    if parts:
        jobs = _dealt(parts)
        taken = len(list(scratch.glob("build*")))  # by what was built before
        folders = [scratch / f"build{taken + number}" for number in range(len(jobs))]
        with ThreadPoolExecutor(len(jobs)) as threads:
            new = dict(pair for pairs in threads.map(compiled, folders, jobs) for pair in pairs)
        known.add(scratch, {keys[i]: b for i, b in new.items()})
        built |= new
    in_order = (built[i] for i in range(len(launches)))
    return {
        name: [[next(in_order) for _ in launch.configs] for launch in plan.launches] for name, plan in plans.items()
    }


class KnownBuilds:
    """What was compiled for a task: candidates have most of their kernels and configurations in common.

    A build is known by all that decides it: the text of its kernel and of what that calls, the constants in it, the
    arguments, options and target.  Thread-safe.
    """

    def __init__(self, most: int = 1024) -> None:
        """`most`: builds that are kept, of some ten kilobytes each."""
        self._most = most
        self._builds: OrderedDict[str, tuple[Mapping[str, Any], bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def keys(
        self, source: str, constants: Mapping[str, Any], target: str, launches: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """The name of each launch's build, "" where it cannot be known."""
        found = closures(source)
        return [_key(found, constants, target, launch) for launch in launches]

    def left_in(self, scratch: Path, keys: Sequence[str]) -> dict[int, dict[str, Any]]:
        """The known ones among the builds, by their place; their cubins are written to `scratch`."""
        found: dict[int, dict[str, Any]] = {}
        with self._lock:
            for place, key in enumerate(keys):
                if key in self._builds:
                    self._builds.move_to_end(key)
                    build, cubin = self._builds[key]
                    (scratch / f"{key}.cubin").write_bytes(cubin)
                    found[place] = {**build, "cubin": f"{key}.cubin"}
        return found

    def add(self, scratch: Path, builds: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes in builds by their keys; their cubins are in `scratch`."""
        new = {key: (b, (scratch / b["cubin"]).read_bytes()) for key, b in builds.items() if key}
        with self._lock:
            self._builds |= new
            while len(self._builds) > self._most:
                self._builds.popitem(last=False)


def _key(
    kernels: Mapping[str, tuple[str, frozenset[str]]],
    constants: Mapping[str, Any],
    target: str,
    launch: Mapping[str, Any],
) -> str:
    if launch["kernel"] not in kernels:
        return ""
    text, names = kernels[launch["kernel"]]
    used = {name: value for name, value in constants.items() if name in names}
    decisive = json.dumps([text, used, target, launch["kernel"], launch["args"], launch["options"]], sort_keys=True)
    # A function that is passed to a kernel, or that a constant stands for, is part of neither's text.
    return "" if '"jit"' in json.dumps([used, launch["args"]]) else sha256(decisive.encode()).hexdigest()[:32]


def _launches(plans: Mapping[str, LaunchPlan]) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """All launches as a compile job takes them, and which of them should be one job's.

    Cases mostly share the build of a configuration, and a job compiles equal ones once.
    """
    launches: list[dict[str, Any]] = []
    parts: dict[tuple, list[int]] = {}
    for plan in plans.values():
        for step in to_json(plan)["steps"]:
            for number, config in enumerate(step["configs"] if "launch" in step else ()):
                kernel, line = step["launch"], step["line"]
                parts.setdefault((kernel, line, number), []).append(len(launches))
                launches.append({"kernel": kernel, "args": config["args"], "options": config["options"], "line": line})
    return launches, list(parts.values())


def _dealt(parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The parts as the work of so many jobs: in turns, as neighbours among configurations are alike."""
    count = min(-(-len(parts) // CONFIGS_A_JOB), COMPILE_JOBS)
    return [[i for part in parts[first::count] for i in part] for first in range(count)]


def cubins(builds: Builds, scratch: Path) -> dict[str, bytes]:
    """The machine code that `build` left in `scratch`, by the "cubin" of the builds."""
    names = {b["cubin"] for case in builds.values() for launch in case for b in launch}
    return {name: (scratch / name).read_bytes() for name in names}


def make_work(
    source: str,
    task: Task,
    calls: Sequence[Mapping[str, Any]],
    *,
    zygote: Zygote,
    target: str,
    scratch: Path,
    limits: Limits,
) -> Work:
    """Work for the GPU of `source` on `calls`, with every configuration left to choose from.  Raises Stop."""
    recorded = record(source, task, calls, zygote=zygote, target=target, scratch=scratch, limits=limits)
    builds = build(
        source, recorded.plans, recorded.constants, zygote=zygote, target=target, scratch=scratch, limits=limits
    )
    return Work(recorded.plans, builds, cubins(builds, scratch))
