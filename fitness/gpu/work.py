"""From a source to launch plans and machine code: recorded and compiled in sandboxed children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.records import Verdict
from fitness.gpu.runner import Work
from fitness.plan import LaunchPlan, PlanError, from_json, to_json
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.stages import Stop, expect_ok
from fitness.task import Task

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
) -> Builds:
    """Every configuration of every launch of `plans`, compiled; the cubins are left in `scratch`.  Raises Stop."""
    launches = [
        {"kernel": step["launch"], "args": config["args"], "options": config["options"], "line": step["line"]}
        for plan in plans.values()
        for step in to_json(plan)["steps"]
        if "launch" in step
        for config in step["configs"]
    ]
    payload = {"source": source, "constants": dict(constants), "target": target, "launches": launches}
    value = expect_ok("compile", zygote.run("compile", payload, scratch=scratch, limits=limits))
    in_order: Iterator[dict[str, Any]] = iter(value["builds"])
    return {
        name: [[next(in_order) for _ in launch.configs] for launch in plan.launches] for name, plan in plans.items()
    }


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
