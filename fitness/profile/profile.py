"""Finds what limits a kernel, from the best of three tiers: counters, measured times, or the model alone.

Each tier fills the same readings (`NAMES`): percentages of the GPU's maximum, resources, ratios.  They give the
bottleneck, the three or four numbers that show it, and the hints.  The case is the one in which the seed kernel takes
the longest.  It is the same for every candidate, so that numbers can be compared.

The counters-free tier knows the time and the compiled code, but not what the GPU did meanwhile.  The model
(`fitness/estimate/time_model.py`) says how long each resource was busy, against the measured time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from evo.core.records import Case, Profile, Timing
from fitness.estimate.attainable import attainable_us
from fitness.estimate.time_model import DRAM_EFFICIENCY, Estimate
from fitness.frontend import screen
from fitness.frontend.plan import Launch, LaunchPlan
from fitness.frontend.target import Target
from fitness.profile.hints import hints
from fitness.tasks.task import Task
from fitness.tasks.work import Workload

# reading -> its name in a profile
NAMES: Mapping[str, str] = {
    "time": "time, µs",
    "dram": "DRAM busy, % of the time",
    "l2": "L2 busy, % of the time",
    "l1": "L1 busy, % of the time",
    "sm": "multiprocessors busy, % of the time",
    "issue": "issue slots used, %",
    "tensor": "tensor cores busy, % of the time",
    "special": "special function units busy, % of the time",
    "shared": "shared memory busy, % of the time",
    "scattered": "partly filled sectors stored, % of the time",
    "atomics": "atomic operations, % of the time",
    "waiting": "waiting with nothing busy, % of the time",
    "launch": "starting kernels and programs, % of the time",
    "occupancy": "warps that fit, % of the slots",
    "active": "warps active, % of the slots",
    "programs": "programs a multiprocessor",
    "tail": "places empty in the last wave, % of all waves",
    "registers": "registers a thread",
    "spills": "bytes of registers spilled a thread",
    "shared_bytes": "bytes of shared memory a program",
    "warps": "warps a program",
    "by_registers": "registers limit occupancy (1: yes)",
    "by_shared": "shared memory limits occupancy (1: yes)",
    "load_bytes": "widest load of a thread, bytes",
    "tensor_instructions": "tensor core instructions in the code",
    "mma_sync": "mma.sync instructions in the code",
    "wgmma": "wgmma instructions in the code",
    "intensity": "operations a byte, least possible traffic",
    "moved": "DRAM traffic, times what the problem needs",
    "l1_hit": "L1 hits, %",
    "l2_hit": "L2 hits, %",
    "sector": "bytes used of the sectors loaded, %",
    "conflicts": "shared memory conflicts an access",
    "stall_long_scoreboard": "stalled on global loads, % of stalls",
    "stall_short_scoreboard": "stalled on shared memory or special functions, % of stalls",
    "stall_barrier": "stalled at barriers, % of stalls",
    "stall_wait": "stalled on fixed latencies, % of stalls",
    "stall_math_pipe_throttle": "stalled on arithmetic units, % of stalls",
    "stall_mio_throttle": "stalled on the queue of shared memory, % of stalls",
    "stall_lg_throttle": "stalled on the queue of global accesses, % of stalls",
    "stall_gmma": "stalled on wgmma, % of stalls",
    "stall_drain": "stalled on stores at the end, % of stalls",
    "stall_membar": "stalled at memory barriers, % of stalls",
    "stall_branch_resolve": "stalled on branches, % of stalls",
    "stall_no_instruction": "stalled on fetching instructions, % of stalls",
    "stall_dispatch_stall": "stalled at dispatch, % of stalls",
    "stall_imc_miss": "stalled on constants, % of stalls",
}

# The resource of each bottleneck.
_RESOURCES = {
    "memory": ("dram", "l2", "l1", "scattered", "atomics"),
    "compute": ("sm", "tensor", "issue", "special", "shared"),
    "overhead": ("launch",),
}
# What else is shown of each, if it is known.
_TELLING = {
    "memory": ("moved", "l2_hit", "load_bytes"),
    "compute": ("tensor", "issue", "active"),
    "overhead": ("programs",),
}
# A resource is the limit if it is busy for this part of the time, percent: Nsight Compute's rule for its classes.
BUSY = 60.0
# The same in the model, whose terms overlap less than in the device.
MODEL_BUSY = 40.0


@dataclass(frozen=True)
class Subject:
    """What is profiled: the case, its plan with the chosen configuration of each launch, and the code of these."""

    case: Case
    plan: LaunchPlan
    choice: Sequence[int]
    builds: Sequence[Mapping[str, Any]]  # of the chosen configurations, in launch order
    bytes: float | None  # that the problem has to move at least
    flops: float | None


def subject(task: Task, timings: Sequence[Timing], plans: Mapping[str, Any], choices: Any, builds: Any) -> Subject:
    """Returns the case to profile.  timings: of the tune cases; plans, choices, builds: by case, once compiled."""
    name = longest(timings)
    case = next(c for c in task.cases if c.name == name)
    choice = choices.get(name) or [0] * len(builds[name])
    return Subject(
        case=case,
        plan=plans[name],
        choice=choice,
        builds=[by_config[i] for by_config, i in zip(builds[name], choice, strict=True)],
        bytes=task.bytes(case) if task.bytes else None,
        flops=task.flops(case) if task.flops else None,
    )


def longest(timings: Sequence[Timing]) -> str:
    """Returns the case in which the seed takes the longest."""
    return max(timings, key=lambda t: t.baseline_median_us).case


# --- tiers -----------------------------------------------------------------------------------------------------------


def from_estimate(of: Subject, estimate: Estimate, target: Target, fallback: str = "") -> Profile:
    """Returns the profile of tier "estimate": the model's time, and its parts."""
    slowest = _slowest(estimate, of)
    readings = _modelled(estimate, estimate.total_us) | _static(of, slowest, target)
    readings |= _moved(of, estimate, target)
    kernel = of.plan.launches[slowest].kernel
    return _digest("estimate", of, readings, target, kernel, fallback, kernels=_modelled_kernels(estimate))


def from_timing(
    of: Subject, timing: Timing, estimate: Estimate | None, target: Target, gpu: Mapping[str, Any], fallback: str = ""
) -> Profile:
    """Returns the profile of tier "counters-free": the measured time, the compiled code, and the model's shares of it.

    gpu: has the measured ceilings of `fitness.cuda.device.DeviceFacts`; estimate: None if the plan has none.
    """
    time_us = timing.median_us
    slowest = _slowest(estimate, of)
    readings = {"time": time_us} | _static(of, slowest, target)
    if estimate is not None:
        readings |= _modelled(estimate, time_us) | _moved(of, estimate, target)
    if of.bytes:
        least = 100 * of.bytes / gpu["copy_bytes_per_s"] * 1e6 / time_us
        readings["dram"] = min(100.0, max(readings.get("dram", 0.0), least))
    kernels = _modelled_kernels(estimate) if estimate is not None else {}
    kernel = of.plan.launches[slowest].kernel
    return _digest("counters-free", of, readings, target, kernel, fallback, gpu, kernels)


def from_counters(of: Subject, counters: Sequence[tuple[str, Mapping[str, float]]], target: Target) -> Profile:
    """Returns the profile of tier "ncu".

    counters: (kernel, readings) of each launch in order, from `fitness.profile.ncu.CounterReader.read`.
    """
    own = {launch.kernel for launch in of.plan.launches}
    row = max(range(len(counters)), key=lambda i: (counters[i][0] in own, counters[i][1]["time"]))
    kernel, measured = counters[row]
    total = math.fsum(r["time"] for _, r in counters)
    readings = {**_static(of, _launch_of(row, of, counters), target), **measured, "time": total}
    if of.bytes and all("dram_bytes" in r for _, r in counters):
        readings["moved"] = math.fsum(r["dram_bytes"] for _, r in counters) / of.bytes
    kernels: dict[str, float] = {}
    for name, of_launch in counters:
        kernels[name] = kernels.get(name, 0.0) + of_launch["time"]
    return _digest("ncu", of, readings, target, kernel, "", kernels=kernels)


# --- readings --------------------------------------------------------------------------------------------------------


def _modelled(estimate: Estimate, time_us: float) -> dict[str, float]:
    """Returns the terms of the model as parts of a time, in percent."""
    terms = {name: min(100.0, 100 * us / time_us) for name, us in estimate.terms.items()}
    starting = terms.pop("schedule", 0.0) + terms.pop("launch", 0.0)
    readings = {name: terms[name] for name in NAMES if name in terms}
    return readings | {"time": time_us, "launch": min(100.0, starting), "waiting": terms.get("latency", 0.0)}


def _modelled_kernels(estimate: Estimate) -> dict[str, float]:
    """Returns the model's microseconds of all launches and steps of one name together."""
    found: dict[str, float] = {}
    for step in estimate.per_launch:
        found[step.name] = found.get(step.name, 0.0) + step.total_us
    return found


def _static(of: Subject, launch: int, target: Target) -> dict[str, float]:
    """Returns readings of the compiled code and the grid of a launch: the number of the slowest one."""
    build = of.builds[launch]
    programs = math.prod(of.plan.launches[launch].configs[of.choice[launch]].grid)
    registers, shared, warps = build["registers"], build["shared_bytes"], build["num_warps"]
    resident, share = screen.occupancy(registers, shared, warps, target)
    places = max(1, resident * target.multiprocessors)
    waves = programs / places
    readings = {
        "occupancy": 100 * share,
        "programs": programs / target.multiprocessors,
        "tail": 100 * (1 - waves / math.ceil(waves)) if waves > 1 else 0.0,
        "registers": registers,
        "spills": build["spill_bytes"],
        "shared_bytes": shared,
        "warps": warps,
        "by_registers": screen.occupancy(16, shared, warps, target)[0] > resident,
        "by_shared": screen.occupancy(registers, 0, warps, target)[0] > resident,
    }
    features = build.get("ptx_features")
    if features:
        readings |= {k: features[k] for k in ("mma_sync", "wgmma")}
        readings["tensor_instructions"] = features["mma_sync"] + features["wgmma"] + features.get("tcgen05", 0)
        if features["load_bytes"]:  # 0: all loads go through other instructions
            readings["load_bytes"] = features["load_bytes"]
    if of.bytes and of.flops:
        readings["intensity"] = of.flops / of.bytes
    return {name: float(value) for name, value in readings.items()}


def _moved(of: Subject, estimate: Estimate, target: Target) -> dict[str, float]:
    """Returns traffic against the needed bytes; empty if all of it stays in L2."""
    if not of.bytes or of.bytes < target.l2_bytes or "dram" not in estimate.terms:
        return {}
    return {"moved": estimate.terms["dram"] * 1e-6 * DRAM_EFFICIENCY * target.dram_bytes_per_s / of.bytes}


def _slowest(estimate: Estimate | None, of: Subject) -> int:
    """Returns the number of the launch that takes the most time; the first one if that is unknown."""
    if estimate is None:
        return 0
    steps = zip(of.plan.steps, estimate.per_launch, strict=True)
    times = [found.total_us for step, found in steps if isinstance(step, Launch)]
    return max(range(len(times)), key=times.__getitem__)


def _launch_of(row: int, of: Subject, counters: Sequence[tuple[str, Mapping[str, float]]]) -> int:
    """Returns the number of the launch that a row of the counters is of; 0 for a kernel that is not the candidate's.

    Launches of no programs have no row.
    """
    kernel = counters[row][0]
    launched = [
        number
        for number, (launch, choice) in enumerate(zip(of.plan.launches, of.choice, strict=True))
        if launch.kernel == kernel and 0 not in launch.configs[choice].grid
    ]
    before = sum(name == kernel for name, _ in counters[:row])
    return (launched[before:] or launched or [0])[0]


# --- digest ----------------------------------------------------------------------------------------------------------


def _digest(
    tier: str,
    of: Subject,
    readings: Mapping[str, float],
    target: Target,
    kernel: str,
    fallback: str,
    gpu: Mapping[str, Any] | None = None,
    kernels: Mapping[str, float] = MappingProxyType({}),
) -> Profile:
    bottleneck, shown, reason = _classified(tier, readings)
    return Profile(
        tier=tier,
        bottleneck=bottleneck,
        reason=f"{reason} (case {of.case.name})",
        numbers={NAMES[name]: readings[name] for name in shown if name in readings},
        roofline=roofline(of, readings["time"], target, gpu),
        hints=hints(bottleneck, readings),
        case=of.case.name,
        kernel=kernel,
        metrics={NAMES[name]: readings[name] for name in NAMES if name in readings},
        kernels=dict(kernels),
        fallback=fallback,
    )


def _classified(tier: str, readings: Mapping[str, float]) -> tuple[str, tuple[str, ...], str]:
    """Returns (bottleneck, readings that show it, one sentence)."""
    busy = {name: (readings[name], kind) for kind, names in _RESOURCES.items() for name in names if readings.get(name)}
    name = max(busy, key=lambda n: busy[n][0], default="")
    share, kind = busy.get(name, (0.0, "latency"))
    limit = BUSY if tier == "ncu" else MODEL_BUSY
    resources = ("occupancy", "active", "programs")
    waits = _most_stalled(readings)
    # A kernel that fills less than one program a multiprocessor has no resource busy for lack of programs.
    if readings.get("programs", math.inf) < 1 and share < BUSY:
        few = f"{readings['programs']:.2g} programs for each multiprocessor: most of the GPU has nothing to do"
        return "parallelism", ("programs", "time", name, "warps"), few
    if share < limit or readings.get("waiting", 0.0) > share:
        why = f"no resource is busy for long ({_lower(name)} {share:.0f}%), programs wait" if name else "programs wait"
        return "latency", (waits or "waiting", name, *resources[: 1 + ("active" in readings)], "registers"), why
    why = f"{_lower(name)} {share:.0f}%, more than anything else"
    spills = ("spills",) if readings.get("spills") else ()
    rest = [n for n in (*spills, *_TELLING[kind], "occupancy", "time") if n in readings and n != name]
    return kind, (name, *rest[:3]), why


def _most_stalled(readings: Mapping[str, float]) -> str:
    stalls = [name for name in readings if name.startswith("stall_") and name in NAMES]
    return max(stalls, key=readings.__getitem__) if stalls else ""


def _lower(name: str) -> str:
    return NAMES[name].partition(",")[0]


def roofline(of: Subject, time_us: float, target: Target, gpu: Mapping[str, Any] | None = None) -> float | None:
    """Returns the least possible time over the time, at most 1; None if the task does not say how much work it is."""
    if of.bytes is None and of.flops is None:
        return None
    work = Workload(of.bytes, {of.case.dtype: of.flops or 0.0}, "stated")
    return min(1.0, (attainable_us(work, target, gpu) or 0.0) / time_us)
