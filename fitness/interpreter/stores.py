"""Describes which bytes each program of a launch stores, if all programs store the same block, shifted.

In most kernels each step along an axis of the grid shifts the block by a fixed distance.  All traced programs must
agree.  Then it is known which program stores an element, without executing any.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fitness.interpreter.spans import Spans

Grid = tuple[int, int, int]
MOST_INTERVALS, MOST_UNITED = 1 << 14, 1 << 20  # of one block, and of the blocks of all programs.
MOST_GRID = 1 << 21  # programs of a grid that is searched.
LEFT_BYTES = 8 << 20  # size of the file that a sampled run writes.
ROW_BYTES = 24  # of one row in it, which says which bytes follow.


@dataclass(frozen=True)
class StoreBlock:
    """The bytes that each program of a launch stores in one buffer.

    grid: that of the launch.
    starts, ends: intervals of bytes in the buffer that the first program stores, sorted and disjoint.
    shifts: distance in bytes to the block of the next program along x, y and z.
    complete: whether every traced program stores its whole block, as far as it is in the buffer.  The last programs
    along an axis may store less.
    """

    buffer: int
    grid: Grid
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    shifts: tuple[int, int, int]
    complete: bool

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> StoreBlock:
        """The block from its `dataclasses.asdict`, also after JSON."""
        tuples = {name: tuple(raw[name]) for name in ("grid", "starts", "ends", "shifts")}
        return cls(**{**raw, **tuples})

    def programs_at(self, byte: int) -> list[int]:
        """The numbers (x fastest) of all programs whose blocks have this byte of the buffer.

        There may be several: a program at the end of a row stores a part of its block, and the rest is in the next row.
        """
        starts, ends = np.array(self.starts), np.array(self.ends)
        at = byte - self._moves()
        index = np.searchsorted(starts, at, side="right") - 1
        hits = np.flatnonzero((index >= 0) & (at < ends[index]))
        return hits.tolist()

    def of(self, number: int) -> Spans:
        """The block of the program of this number; a mask may leave out some of it."""
        move = sum(s * i for s, i in zip(self.shifts, position(number, self.grid), strict=True))
        return Spans(np.array(self.starts, np.int64) + move, np.array(self.ends, np.int64) + move)

    def missing(self, size: int) -> Spans | None:
        """The bytes of a buffer of this size that are in no program's block; None if that takes too long to find."""
        return _missing(self, size)

    def _moves(self) -> np.ndarray:
        """The distance in bytes of each program's block from the first one, in order of their numbers."""
        x, y, z = (shift * np.arange(size, dtype=np.int64) for shift, size in zip(self.shifts, self.grid, strict=True))
        return (x + (y[:, None] + z[:, None, None])).reshape(-1)


@functools.lru_cache(maxsize=8)
def _missing(block: StoreBlock, size: int) -> Spans | None:
    """`StoreBlock.missing`, which is asked again for each element that is drawn of an output."""
    moves = block._moves()
    if moves.size * len(block.starts) > MOST_UNITED:
        return None
    starts, ends = ((np.array(side, np.int64) + moves[:, None]).reshape(-1) for side in (block.starts, block.ends))
    covered = Spans.merged(starts, ends)
    gaps = np.stack([np.concatenate(([0], covered.ends)), np.concatenate((covered.starts, [size]))])
    gaps = np.clip(gaps, 0, size)
    return Spans(gaps[0][gaps[0] < gaps[1]], gaps[1][gaps[0] < gaps[1]])


def position(number: int, grid: Grid) -> tuple[int, int, int]:
    """The program (x, y, z) of a number, x fastest."""
    return number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1]


def corners(grid: Grid) -> set[int]:
    """The first program and its neighbour along each axis, which show how a block moves."""
    steps = (1, grid[0], grid[0] * grid[1])
    return {0} | {step for size, step in zip(grid, steps, strict=True) if size > 1}


def block_of(buffer: int, nbytes: int, grid: Grid, stored: Mapping[int, Spans]) -> StoreBlock | None:
    """The block that the first program stores in a buffer; None if another program stores more than that, shifted.

    stored: the bytes that each program stored, by its number; `corners` must be among them.
    """
    first = stored[0]
    if not 0 < first.starts.size <= MOST_INTERVALS or math.prod(grid) > MOST_GRID:
        return None
    shifts: list[int] = []
    for size, step in zip(grid, (1, grid[0], grid[0] * grid[1]), strict=True):
        if size > 1 and not stored[step].starts.size:
            return None
        shifts.append(int(stored[step].starts[0] - first.starts[0]) if size > 1 else 0)
    starts, ends = tuple(first.starts.tolist()), tuple(first.ends.tolist())
    block = StoreBlock(buffer, grid, starts, ends, (shifts[0], shifts[1], shifts[2]), complete=True)
    complete = True
    for number, spans in stored.items():
        expected = block.of(number)
        if Spans.union((expected, spans)).size != expected.size:
            return None
        inside = np.clip(expected.ends, 0, nbytes) - np.clip(expected.starts, 0, nbytes)
        last = any(n > 1 and i == n - 1 for i, n in zip(position(number, grid), grid, strict=True))
        complete &= last or spans.size == int(inside.sum())
    return replace(block, complete=complete)
