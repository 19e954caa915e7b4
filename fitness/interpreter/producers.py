"""Which programs of earlier launches must be executed for some programs of later ones.

A program that is executed alone may load what programs of an earlier launch would have stored.  Those are found by the
blocks that a launch's programs store (`fitness.interpreter.stores`).  If they do not store alike, the later program is
left out, as nothing is known of what it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fitness.interpreter.stores import StoreBlock
from fitness.interpreter.validity import Missing, Validity

ATTEMPTS = 4  # launches in a chain
MOST_PROGRAMS = 256  # that are searched for one program
MOST_COST = 6000.0  # of all that are executed for others (`LaunchWork.cost`)


def executed_samples(run: Mapping[str, Any], make: Callable[[Sequence[Sequence[int]]], Any]) -> Any:
    """Executes the programs of `run`, and those that they need, each time from the beginning.

    make: an execution of these programs of each launch.
    """
    numbers = [set(chosen) for chosen in run["programs"]]
    blocks = [{b["buffer"]: StoreBlock.from_dict(b) for b in launch["blocks"]} for launch in run["work"]]
    room = MOST_COST
    for _ in range(ATTEMPTS):
        made = make([sorted(chosen) for chosen in numbers])
        made.execute()
        before = sum(map(len, numbers))
        for missing in made.conflicts.missing:
            at, new = _storing(missing, made.conflicts, blocks)
            new -= numbers[at]
            if len(new) * run["work"][at]["cost"] <= room:
                room -= len(new) * run["work"][at]["cost"]
                numbers[at] |= new
        if sum(map(len, numbers)) == before:
            break
    return made


def _storing(missing: Missing, memory: Validity, blocks: Sequence[Mapping[int, StoreBlock]]) -> tuple[int, set[int]]:
    """The last launch before that stores to what is missing, and its programs that do; none if that is not known."""
    buffer = memory.buffer_of(int(missing.offsets[0]))
    at = max((launch for launch in range(missing.launch) if buffer in blocks[launch]), default=0)
    block = blocks[at].get(buffer)
    found: set[int] = set()
    left = np.unique(missing.offsets) - memory.offset_of(buffer)
    while block is not None and left.size and len(found) < MOST_PROGRAMS:
        numbers = block.programs_at(int(left[0]))
        if not numbers:
            return at, set()
        found |= set(numbers)
        for spans in map(block.of, numbers):
            index = np.searchsorted(spans.starts, left, side="right") - 1
            left = left[(index < 0) | (left >= spans.ends[index])]
    return at, found
