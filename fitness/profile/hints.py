"""Suggests what to try, given readings of a kernel: a table of hints, each counted by its id.

A hint is shown if its condition holds on the readings (`fitness/profile/profile.py` names them) and its class fits.  At
most three are shown, in the order of this table: causes before their consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evo.core.records import Hint

MOST = 3

Readings = Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """A hint and its condition.

    classes: bottlenecks for which it helps; when: gets readings, any of which may be missing.
    """

    id: str
    action: str
    classes: tuple[str, ...]
    when: Callable[[Readings], bool]


def _at_least(name: str, value: float) -> Callable[[Readings], bool]:
    return lambda r: name in r and r[name] >= value


def _below(name: str, value: float) -> Callable[[Readings], bool]:
    return lambda r: name in r and r[name] < value


def _both(one: Callable[[Readings], bool], two: Callable[[Readings], bool]) -> Callable[[Readings], bool]:
    return lambda r: one(r) and two(r)


def _either(one: Callable[[Readings], bool], two: Callable[[Readings], bool]) -> Callable[[Readings], bool]:
    return lambda r: one(r) or two(r)


_ANY = ("memory", "compute", "latency", "parallelism", "overhead")
_WAITING = ("memory", "latency")

# Thresholds: from here on a change is worth it; smaller values are also measurable.
RULES = (
    Rule(
        "spills",
        "Registers spill to memory: let a program hold less at once (smaller blocks, loops over parts), or give it "
        "more warps.",
        _ANY,
        _at_least("spills", 64),  # the rarely used path of sin and cos keeps 32 bytes there
    ),
    Rule(
        "more-programs",
        "Too few programs to fill the GPU: smaller blocks, or split the work of a program (rows, columns, a reduction "
        "in two steps).",
        ("parallelism", "latency"),
        _below("programs", 1.0),
    ),
    Rule(
        "even-waves",
        "The last programs leave most of the GPU idle: choose blocks so that their number is a multiple of what runs "
        "at once, or make programs persistent (a loop over the work, one program for each place).",
        _ANY,
        _at_least("tail", 20),
    ),
    Rule(
        "fewer-bytes",
        "More is moved than the problem needs: keep values in registers between passes, fuse passes, use an online "
        "form of the reduction.",
        _WAITING,
        _at_least("moved", 1.3),
    ),
    Rule(
        "whole-sectors",
        "Accesses use parts of the 32 bytes that memory moves: let neighbouring elements of a block be neighbours in "
        "memory, transpose in registers (tl.trans) instead of in addresses.",
        _WAITING,
        _either(_below("sector", 70), _at_least("scattered", 15)),
    ),
    Rule(
        "wider-loads",
        "A thread loads fewer than 16 bytes at once: larger blocks along the contiguous axis, offsets that the "
        "compiler sees to be contiguous and divisible by 16.",
        _WAITING,
        _below("load_bytes", 16),
    ),
    Rule(
        "atomics",
        "Atomic operations take much of the time: reduce within a program first, or add up parts in another kernel.",
        _ANY,
        _at_least("atomics", 15),
    ),
    Rule(
        "occupancy-registers",
        "Registers limit how many programs run at once: smaller blocks, shorter lives of values, or maxnreg.",
        _WAITING,
        _both(_below("occupancy", 40), _at_least("by_registers", 1)),
    ),
    Rule(
        "occupancy-shared",
        "Shared memory limits how many programs run at once: fewer num_stages, smaller blocks of what goes through it.",
        _WAITING,
        _both(_below("occupancy", 40), _at_least("by_shared", 1)),
    ),
    Rule(
        "barriers",
        "Warps wait for each other: fewer warps, fewer reductions, reductions over what one warp holds.",
        ("latency", "compute"),
        _at_least("stall_barrier", 15),
    ),
    Rule(
        "loads-ahead",
        "Programs wait for loads: more of them in flight (num_stages in loops, independent loads before their use, "
        "more elements a program), or more programs at once.",
        _WAITING,
        _either(_at_least("stall_long_scoreboard", 30), _at_least("waiting", 35)),
    ),
    Rule(
        "bank-conflicts",
        "Accesses to shared memory collide: other block shapes, operands of tl.dot in the order they are loaded in.",
        _ANY,
        _at_least("conflicts", 0.5),
    ),
    Rule(
        "tensor-cores",
        "Products are computed without tensor cores: use tl.dot on blocks (pad a short dimension to 16).",
        ("compute", "latency"),
        _both(_below("tensor_instructions", 1), _at_least("intensity", 30)),
    ),
    Rule(
        "wgmma",
        "Tensor cores are driven by the older instructions: tl.dot with M of at least 64 and num_warps of 4 or 8 uses "
        "Hopper's.",
        ("compute", "latency"),
        _both(_at_least("mma_sync", 1), _below("wgmma", 1)),
    ),
    Rule(
        "special-functions",
        "The units for exp, log, sin and division are the limit: exp2 instead of exp, one division instead of many, "
        "reuse of results.",
        ("compute", "latency"),
        _at_least("special", 30),
    ),
    Rule(
        "fewer-instructions",
        "Instructions are the limit: hoist masks and index arithmetic out of loops, skip masks where sizes fit, use "
        "narrower or packed types.",
        ("compute",),
        _at_least("issue", 40),
    ),
    Rule(
        "launches",
        "Starting kernels and programs takes much of the time: fewer and larger programs, fused kernels.",
        _ANY,
        _at_least("launch", 20),
    ),
    Rule(
        "cache-order",
        "Data is fetched again because other data pushed it out of L2: visit tiles that share data one after the other "
        "(grouped program ids).",
        ("memory",),
        _both(_below("l2_hit", 50), _at_least("moved", 1.1)),
    ),
)


def hints(bottleneck: str, readings: Readings) -> tuple[Hint, ...]:
    """Returns the hints that apply, the most important first."""
    found = [Hint(r.id, r.action) for r in RULES if bottleneck in r.classes and r.when(readings)]
    return tuple(found[:MOST])
