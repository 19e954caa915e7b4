"""Screens a build before anything runs: whether the target can launch it, its occupancy, and the plan's hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evo.core.records import Build
from fitness.frontend.plan import ITEMSIZE, Launch, LaunchPlan, to_json
from fitness.frontend.target import Target

# NVIDIA's occupancy calculator, compute capabilities 8.0 to 10.0 (CUDA C++ Programming Guide, technical
# specifications).
REGISTER_UNIT = 256  # Registers are allocated to a warp in this unit.
WARP_UNIT = 4  # Warps are allocated in this unit, one per scheduler.
SHARED_UNIT = 128  # Shared memory is allocated to a program in this unit, in bytes.
SHARED_RESERVED = 1024  # The system keeps this much shared memory for each program, in bytes.
WARP = 32
MAX_THREADS = 1024  # of one program.
MOST_STAGES = 16  # of a loop's pipeline: each stage holds its blocks in shared memory.


def occupancy(registers: int, shared_bytes: int, num_warps: int, target: Target) -> tuple[int, float]:
    """(programs resident on a multiprocessor, resident warps / warp slots); (0, 0.0) for a program that cannot run.

    `registers` are per thread, `shared_bytes` per program.
    """
    per_warp = max(1, _round_up(registers * WARP, REGISTER_UNIT))
    warps_by_registers = target.registers_per_multiprocessor // per_warp // WARP_UNIT * WARP_UNIT
    programs = min(
        warps_by_registers // num_warps,
        target.shared_per_multiprocessor // _round_up(shared_bytes + SHARED_RESERVED, SHARED_UNIT),
        target.warps_per_multiprocessor // num_warps,
        target.programs_per_multiprocessor,
    )
    return programs, programs * num_warps / target.warps_per_multiprocessor


def out_of_resources(build: Build | Mapping[str, Any], target: Target) -> str | None:
    """Why the target cannot launch this build, or None."""
    b = _as_dict(build)
    threads = b["num_warps"] * WARP
    registers = b.get("registers", 0) * threads  # unknown without machine code
    if b["shared_bytes"] > target.shared_per_program:
        return (
            f"needs {b['shared_bytes']} bytes of shared memory, a program on {target.device_name} has "
            f"{target.shared_per_program}; use smaller blocks or fewer num_stages"
        )
    if threads > MAX_THREADS:
        return (
            f"num_warps={b['num_warps']} makes {threads} threads, a program may have {MAX_THREADS}; use num_warps<=32"
        )
    if registers > target.registers_per_program:
        return (
            f"needs {registers} registers ({b['registers']} for each of {threads} threads), a program has "
            f"{target.registers_per_program}; use smaller blocks or fewer num_warps"
        )
    return None


def cooperative_problem(plan: LaunchPlan, builds: Sequence[Sequence[Mapping[str, Any]]], target: Target) -> str | None:
    """Why CUDA refuses a cooperative launch of the plan, or None.  All of its programs must be resident together.

    builds: what `fitness.frontend.compile` returned, by launch and configuration.
    """
    for launch, by_config in zip(plan.launches, builds, strict=True):
        for config, build in zip(launch.configs, by_config, strict=True):
            if "launch" not in build:  # made without machine code, which cooperative launches always have
                continue
            needs = build["launch"]
            resident, _ = occupancy(build["registers"], build["shared_bytes"], build["num_warps"], target)
            # CUDA counts each CTA of a cluster by itself.
            programs, room = math.prod(config.grid) * needs["num_ctas"], resident * target.multiprocessors
            if needs["cooperative"] and programs > room:
                return (
                    f"kernel {launch.kernel}: a cooperative launch of {programs} programs, of which "
                    f"{target.device_name} holds {room} at once ({resident} on each of {target.multiprocessors} "
                    "multiprocessors); launch no more and let them loop, or launch without launch_cooperative_grid"
                )
    return None


def plan_hash(cases: Mapping[str, tuple[LaunchPlan, Sequence[Sequence[Build | Mapping[str, Any]]]]]) -> str:
    """Hash of all work that a plan gives to the device, over all cases: 64 hex digits.

    cases: by name the plan and its builds (as dicts of `fitness.frontend.compile`, one per configuration and launch).
    The hash covers machine code, grids, runtime arguments by position, and which memory each step touches.  It does not
    cover names of kernels and parameters, constexprs, comments and buffer numbers.
    """
    nameless = {name: _without_names(plan, builds) for name, (plan, builds) in sorted(cases.items())}
    return hashlib.sha256(json.dumps(nameless, sort_keys=True).encode()).hexdigest()


def _without_names(plan: LaunchPlan, builds: Sequence[Sequence[Build | Mapping[str, Any]]]) -> list[Any]:
    """The plan as JSON-ready data without names."""
    # Arguments first, then outputs, then scratch memory in the order in which steps touch it.
    order = {b: i for i, b in enumerate(dict.fromkeys(ref.buffer for ref in plan.refs()))}
    raw = _renumbered(to_json(plan), order)
    launches = iter(builds)
    steps = [
        _launch(json_step, next(launches)) if isinstance(step, Launch) else {**json_step, "line": 0}
        for json_step, step in zip(raw["steps"], plan.steps, strict=True)
    ]
    return [raw["inputs"], raw["outputs"], raw["structure"], steps]


def _launch(raw: Mapping[str, Any], builds: Sequence[Build | Mapping[str, Any]]) -> list[Any]:
    """Per configuration: machine code and launch options, grid, runtime arguments by position."""
    found = []
    for config, build in zip(raw["configs"], map(_as_dict, builds), strict=True):
        names = build.get("parameters", list(config["args"]))
        arguments = [_argument(config["args"][name]) for name in names if name in config["args"]]
        code = [build["sass_hash"], build["num_warps"], build["shared_bytes"], config["options"].get("num_ctas", 1)]
        found.append([code, config["grid"], arguments])
    return found


def _argument(raw: Any) -> Any:
    """An argument as a kernel sees it: of a tensor its address only, as buffer and byte."""
    if isinstance(raw, dict) and "t" in raw:
        buffer, dtype, _, _, offset = raw["t"]
        return {"t": [buffer, offset * ITEMSIZE[dtype]]}
    return [_argument(r) for r in raw] if isinstance(raw, list) else raw


def _renumbered(raw: Any, order: Mapping[int, int]) -> Any:
    """`raw` with the buffer number of each encoded window replaced by its number in `order`."""
    if isinstance(raw, list):
        return [_renumbered(r, order) for r in raw]
    if isinstance(raw, dict):
        if set(raw) == {"t"}:
            buffer, *window = raw["t"]
            return {"t": [order[buffer], *window]}
        return {k: _renumbered(v, order) for k, v in raw.items()}
    return raw


def _as_dict(build: Build | Mapping[str, Any]) -> Mapping[str, Any]:
    return dataclasses.asdict(build) if isinstance(build, Build) else build


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
