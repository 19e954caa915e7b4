"""What one launch does: the counts that the trace job returns and the time model reads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fitness.interpreter.stores import StoreBlock

BUFFER_SHIFT = 40  # addresses between buffers: 1 TiB, far more than any buffer has
ELEMENTS_PER_COST = 8192  # one operation costs 1, plus 1 for this many elements really computed
WINDOW = 264  # neighbouring programs: two for each multiprocessor of a device with 132


@dataclass(frozen=True)
class Traffic:
    """One launch's accesses of one kind to one buffer.  Sizes in bytes.

    A footprint is a set of sectors, each counted once however often it is touched.
    """

    buffer: int
    kind: str  # load | store | atomic
    requested: float  # asked for by all programs, every execution of every access
    sectors: float  # the same in whole sectors of 32 bytes
    again: float  # the part of these that the program's access before to this buffer asked for too
    once: float  # sum of the programs' footprints
    touched: float  # the same in single bytes, or the size of the buffer where that is less
    unrepeated: float  # the same if all programs store over each other as those do that are far from each other
    shared: float  # part of a footprint that another program among the next WINDOW touches too, 0..1, on average
    distinct: float  # footprint of the launch

    def resident(self, programs: float, grid: int) -> float:
        """Footprint of `programs` neighbouring programs of the `grid`."""
        return min(union(self.once / grid, self.shared, min(programs, grid)), self.distinct)


@dataclass(frozen=True)
class LaunchWork:
    """What executing one program of a launch costs the interpreter, and which buffers the launch may write to.

    cost: 1 for each operation, and 1 for ELEMENTS_PER_COST elements; about 30 microseconds.
    blocks: of the buffers in which all programs store the same block (`fitness.interpreter.stores`)
    """

    cost: float
    written: tuple[int, ...]
    blocks: tuple[StoreBlock, ...] = ()

    def block(self, buffer: int) -> StoreBlock | None:
        return next((block for block in self.blocks if block.buffer == buffer), None)


@dataclass(frozen=True)
class LaunchTrace:
    """What one launch does, per program (a mean over the samples) unless said otherwise.

    ops: (class, elements of the block, executions), classes as in `fitness.estimate.counters`
    accesses: (kind, elements of the block, bytes of an element, widest access of a thread in bytes, executions)
    dots: (m, n, k, dtype of a, dtype of b, precision, executions)
    reductions: ("reduce" | "scan", elements, results, executions)
    rounds: (kind, where, waits for loads), as in `fitness.estimate.counters.Counter`
    traffic: of all programs, by buffer and kind
    busiest: operations of the busiest sampled program / operations of the mean one
    truncated: a program was cut off (a loop that may not end on zeros), or a loop branched irregularly: the counts are
        too small
    cut_off: a program was cut off, so that all that is counted may be a small part of it
    met: a branch depended on what an atomic returned, so another program may do what is not seen here
    roles: programs differ in what they write to, so that totals are as rough as the samples are few
    astray: a program stores outside of all buffers
    reads_astray: a program loads outside of all buffers
    guided: what a program loads depends on what it loaded before
    doubtful: buffers it was given, if data that is made up here decides what it does: it may write to any of them
    blocks: as of LaunchWork
    """

    kernel: str
    programs: int  # in the grid
    sampled: int
    ops: tuple[tuple[str, int, float], ...]
    accesses: tuple[tuple[str, int, int, int, float], ...]
    dots: tuple[tuple[int, int, int, str, str, str, float], ...]
    reductions: tuple[tuple[str, int, int, float], ...]
    rounds: tuple[tuple[str, str, float], ...]
    traffic: tuple[Traffic, ...]
    busiest: float
    truncated: bool
    roles: bool = False
    met: bool = False
    astray: bool = False
    reads_astray: bool = False
    guided: bool = False
    doubtful: tuple[int, ...] = ()
    blocks: tuple[StoreBlock, ...] = ()
    cut_off: bool = False

    @property
    def work(self) -> LaunchWork:
        each = [(elements, n) for _, elements, n in self.ops] + [(row[1], row[-1]) for row in self.accesses]
        each += [(row[1], row[-1]) for row in self.reductions]
        each += [(m * n * k // 16, count) for m, n, k, *_, count in self.dots]
        cost = math.fsum(count * (1 + elements / ELEMENTS_PER_COST) for elements, count in each)
        written = {t.buffer for t in self.traffic if t.kind != "load"} | set(self.doubtful)
        return LaunchWork(cost, tuple(sorted(written)), self.blocks)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LaunchTrace:
        tuples = {n: tuple(tuple(row) for row in raw[n]) for n in ("ops", "accesses", "dots", "reductions", "rounds")}
        traffic = tuple(Traffic(**t) for t in raw["traffic"])
        blocks = tuple(map(StoreBlock.from_dict, raw["blocks"]))
        return cls(**{**raw, **tuples, "traffic": traffic, "blocks": blocks, "doubtful": tuple(raw["doubtful"])})


def union(size: float, shared: float, count: float) -> float:
    """Footprint of `count` programs with footprints of `size`: a byte is held by 1 + (count - 1) * shared of them."""
    return size * count / (1 + max(0.0, count - 1) * shared)
