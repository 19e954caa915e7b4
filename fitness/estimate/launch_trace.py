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
    """One launch's accesses of one kind to one buffer.  Sizes are in bytes.

    A footprint is a set of sectors of 32 bytes, each counted once however often it is touched.

    kind: "load", "store" or "atomic".
    requested: bytes requested by all programs in all executions of all accesses.
    sectors: the same in whole sectors.
    again: the part of `sectors` that the program's previous access to this buffer requested too.
    once: sum of the programs' footprints.
    touched: the same in single bytes, at most the size of the buffer.
    unrepeated: `touched`, reduced by the share of bytes that programs far from each other store twice.
    shared: part of a footprint that another one of the next WINDOW programs touches too, 0 to 1, on average.
    distinct: footprint of the launch.
    """

    buffer: int
    kind: str
    requested: float
    sectors: float
    again: float
    once: float
    touched: float
    unrepeated: float
    shared: float
    distinct: float

    def resident(self, programs: float, grid: int) -> float:
        """Footprint of `programs` neighbouring programs of the `grid`."""
        return min(union(self.once / grid, self.shared, min(programs, grid)), self.distinct)


@dataclass(frozen=True)
class LaunchWork:
    """The cost of one program of a launch in the interpreter, and the buffers that the launch may write to.

    cost: 1 for each operation, and 1 for ELEMENTS_PER_COST elements; a unit takes about 30 microseconds.
    written: the buffers.
    blocks: the stored block of each buffer in which all programs store the same one (`fitness.interpreter.stores`).
    """

    cost: float
    written: tuple[int, ...]
    blocks: tuple[StoreBlock, ...] = ()

    def block(self, buffer: int) -> StoreBlock | None:
        """The block that programs store in a buffer, None if they do not store alike."""
        return next((block for block in self.blocks if block.buffer == buffer), None)


@dataclass(frozen=True)
class LaunchTrace:
    """The work of one launch: per program, as a mean over the samples, unless stated otherwise.

    programs, sampled: number of programs in the grid, and of those that were counted.
    ops: (class, elements of the block, executions), with the classes of `fitness.estimate.counters`.
    accesses: (kind, elements of the block, bytes of an element, widest access of a thread in bytes, executions).
    dots: (m, n, k, dtype of a, dtype of b, precision, executions).
    reductions: ("reduce" | "scan", elements, results, executions).
    rounds: (kind, place, waits for loads), as in `fitness.estimate.counters.Counter`.
    traffic: that of all programs, by buffer and kind.
    busiest: operations of the busiest sampled program / operations of the mean one.
    truncated: the counts are too small.  A program was cut off (a loop may not end on zeros), or a loop branched
        irregularly.
    cut_off: a program was cut off, so the counts may be a small part of its work.
    met: a branch depended on the result of an atomic, so another program may do work that is not seen here.
    roles: programs write to different buffers, so with few samples totals are rough.
    astray: a program stores outside of all buffers.
    reads_astray: a program loads outside of all buffers.
    guided: the loads of a program depend on what it loaded before.
    doubtful: if made-up data decides what the launch does, all buffers that it was given: it may write to any of them.
    blocks: see LaunchWork.
    """

    kernel: str
    programs: int
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
        """The cost of one program, and the buffers that the launch may write to."""
        each = [(elements, n) for _, elements, n in self.ops] + [(row[1], row[-1]) for row in self.accesses]
        each += [(row[1], row[-1]) for row in self.reductions]
        each += [(m * n * k // 16, count) for m, n, k, *_, count in self.dots]
        cost = math.fsum(count * (1 + elements / ELEMENTS_PER_COST) for elements, count in each)
        written = {t.buffer for t in self.traffic if t.kind != "load"} | set(self.doubtful)
        return LaunchWork(cost, tuple(sorted(written)), self.blocks)

    @property
    def extrapolates_stores(self) -> bool:
        """Whether it is unknown which bytes each program writes, so that the bytes of all are extrapolated."""
        blocks = (self.work.block(t.buffer) for t in self.traffic if t.kind != "load")
        return any(block is None or not block.complete for block in blocks)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LaunchTrace:
        """The trace in what `to_dict` returned, also after JSON."""
        tuples = {n: tuple(tuple(row) for row in raw[n]) for n in ("ops", "accesses", "dots", "reductions", "rounds")}
        traffic = tuple(Traffic(**t) for t in raw["traffic"])
        blocks = tuple(map(StoreBlock.from_dict, raw["blocks"]))
        return cls(**{**raw, **tuples, "traffic": traffic, "blocks": blocks, "doubtful": tuple(raw["doubtful"])})


def union(size: float, shared: float, count: float) -> float:
    """Footprint of `count` programs with footprints of `size`: a byte is held by 1 + (count - 1) * shared of them."""
    return size * count / (1 + max(0.0, count - 1) * shared)
