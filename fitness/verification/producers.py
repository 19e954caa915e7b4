"""Which programs of earlier launches must be executed for some programs of later ones.

A program that is executed alone may load what programs of an earlier launch would have stored.  Those are found from
where a few programs of that launch store: most kernels move the block that they store by a fixed distance for each step
along an axis of the grid.  If one does not, the later program is left out, as nothing is known of what it loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fitness.verification.interpreter import Program
from fitness.verification.validity import Missing, Stored, Validity

ATTEMPTS = 5  # two for each launch in a chain: where it stores, and what is needed
MOST_PROGRAMS = 256  # that are searched for one program
MOST_COST = 6000.0  # of all that are executed for others (`LaunchWork.cost`)
MOST_GRID = 1 << 20  # programs of a grid that is searched


class Samples(Protocol):
    """An execution of some programs of each launch of a plan."""

    conflicts: Validity
    grids: list[Program]
    programs: int

    def execute(self) -> int: ...


def executed_samples(run: Mapping[str, Any], make: Callable[[Sequence[Sequence[int]]], Any]) -> Any:
    """Executes the programs of `run`, and those that they need, each time from the beginning.

    make: an execution of these programs of each launch.
    """
    numbers = [set(chosen) for chosen in run["programs"]]
    for _ in range(ATTEMPTS):
        made = make([sorted(chosen) for chosen in numbers])
        made.execute()
        more = _needed(made, numbers, run["costs"])
        if not any(more):
            break
        numbers = [known | new for known, new in zip(numbers, more, strict=True)]
    return made


def _needed(made: Samples, numbers: Sequence[set[int]], costs: Sequence[float]) -> list[set[int]]:
    """Of each launch, programs that were not executed and would store what was missing, or show where others store.

    numbers: of the programs that were; costs: of one program of each launch.
    """
    more: list[set[int]] = [set() for _ in numbers]
    room = MOST_COST
    for missing in made.conflicts.missing:
        buffer = made.conflicts.buffer_of(int(missing.offsets[0]))
        at = _last_writer(made.conflicts.programs, missing, made.conflicts, buffer)
        if at is None or math.prod(made.grids[at]) > MOST_GRID:
            continue
        corners = _corners(made.grids[at])
        new = corners
        if corners <= numbers[at]:
            stored = {s.number: _offsets(s, made.conflicts, buffer) for s in made.conflicts.programs if s.launch == at}
            new = _storing(missing.offsets, stored, made.grids[at])
        new = new - numbers[at] - more[at]
        if len(new) * costs[at] <= room:
            room -= len(new) * costs[at]
            more[at] |= new
    return more


def _last_writer(programs: Sequence[Stored], missing: Missing, memory: Validity, buffer: int) -> int | None:
    """The last launch before that stores to the buffer, None if none is seen to."""
    found = [s.launch for s in programs if s.launch < missing.launch and _offsets(s, memory, buffer).size]
    return max(found, default=None)


def _offsets(stored: Stored, memory: Validity, buffer: int) -> np.ndarray:
    """Where a program stored in a buffer, sorted."""
    every = [e.offsets for e in stored.elements if e.offsets.size and memory.buffer_of(int(e.offsets.min())) == buffer]
    return np.unique(np.concatenate(every)) if every else np.empty(0, np.int64)


def _corners(grid: Program) -> set[int]:
    """The first program and its neighbour along each axis."""
    steps = (1, grid[0], grid[0] * grid[1])
    return {0} | {step for size, step in zip(grid, steps, strict=True) if size > 1}


def _storing(wanted: np.ndarray, stored: Mapping[int, np.ndarray], grid: Program) -> set[int]:
    """Programs that store at all of the wanted offsets, if all store as the first one does, moved along the axes."""
    block = stored.get(0, np.empty(0, np.int64))
    shifts = np.zeros(math.prod(grid), np.int64)
    numbers = np.arange(shifts.size)
    for size, step in zip(grid, (1, grid[0], grid[0] * grid[1]), strict=True):
        if size > 1:
            neighbour = stored.get(step, np.empty(0, np.int64))
            if not (neighbour.size and block.size):
                return set()
            shifts += numbers // step % size * (neighbour[0] - block[0])
    found: set[int] = set()
    left = np.unique(wanted)
    while left.size and len(found) <= MOST_PROGRAMS:
        index = np.searchsorted(block, left[0] - shifts)
        hits = np.flatnonzero(block[np.minimum(index, block.size - 1)] == left[0] - shifts)
        if not hits.size:
            return set()
        found.add(int(hits[0]))
        left = left[~np.isin(left, block + shifts[hits[0]])]
    return found
