"""From a source to Work for the GPU: recorded and compiled in sandboxed children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.records import Verdict
from fitness.jobs import Limits
from fitness.plan import LaunchPlan, PlanError, from_json, to_json
from fitness.runner import Work
from fitness.stages import Stop, expect_ok
from fitness.task import Task
from fitness.zygote import Zygote


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
    """The plans and machine code of `source` for `calls` (name and described arguments, as `record.job` takes them).

    Every configuration of every launch is compiled; which of them is used is left open.  Raises Stop with the verdict.
    """
    payload = {"source": source, "entry": task.entry, "target": target, "calls": list(calls)}
    recorded = expect_ok("record", zygote.run("record", payload, scratch=scratch, limits=limits))
    try:
        plans = {call["name"]: from_json(recorded["plans"][call["name"]]) for call in calls}
    except (PlanError, KeyError, TypeError) as error:
        raise Stop("record", Verdict.RUNTIME_ERROR, f"the recorded plan does not hold together: {error}") from error
    for plan in plans.values():
        if plan.delegated and not task.allow_delegation:
            raise Stop("record", Verdict.REJECTED, f"work delegated to {plan.delegated[0].name}")
        if not plan.launches:
            raise Stop("record", Verdict.REJECTED, "the entry launches no Triton kernel")
    payload = {
        "source": source,
        "constants": recorded["constants"],
        "target": target,
        "launches": [
            {"kernel": step["launch"], "args": config["args"], "options": config["options"], "line": step["line"]}
            for plan in plans.values()
            for step in to_json(plan)["steps"]
            if "launch" in step
            for config in step["configs"]
        ],
    }
    compiled = expect_ok("compile", zygote.run("compile", payload, scratch=scratch, limits=limits))
    return assemble(plans, compiled["builds"], scratch)


def assemble(plans: Mapping[str, LaunchPlan], builds: Sequence[Mapping[str, Any]], scratch: Path) -> Work:
    """Work of `plans` and the builds of all their configurations in order; reads the cubins from `scratch`."""
    in_order: Iterator[Mapping[str, Any]] = iter(builds)
    by_case = {
        name: [[next(in_order) for _ in launch.configs] for launch in plan.launches] for name, plan in plans.items()
    }
    return Work(plans, by_case, {b["cubin"]: (scratch / b["cubin"]).read_bytes() for b in builds})
