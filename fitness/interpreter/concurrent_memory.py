"""All programs of a launch at once: none sees what another one stores.

Programs that are executed one after the other see the stores of those before, in whatever order they are taken.  On a
device they may all load before any of them stores: of two that each add to the same element, one is lost, and what is
stored back unchanged is what was there before.
"""

from __future__ import annotations

import numpy as np


class ConcurrentMemory:
    """Watches accesses as `Conflicts` does.  Each program begins from the memory as it was before the launch.

    What they stored is there when the launch ends, that of later programs in place of that of earlier ones.
    """

    found = True  # nobody asks for this order unless programs meet

    def __init__(self, memory: np.ndarray, first: int) -> None:
        """memory: (bytes,) uint8, changed in place; first: its address."""
        self._memory, self._first = memory, np.uint64(first)
        self._before = self._after = memory
        self._stored: list[np.ndarray] = []  # offsets of bytes, of the present program

    def begin_launch(self) -> None:
        self._before, self._after = self._memory.copy(), self._memory.copy()

    def begin_program(self) -> None:
        if self._stored:
            at = np.concatenate(self._stored)
            self._after[at] = self._memory[at]
            self._memory[at] = self._before[at]
            self._stored.clear()

    def end_launch(self) -> None:
        self.begin_program()
        self._memory[...] = self._after

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """Watches stores; atomics are executed as if nothing was at once."""
        if kind == "store":
            chosen = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
            offsets = (chosen.reshape(-1) - self._first).astype(np.int64)
            self._stored.append((offsets[:, None] + np.arange(size)).reshape(-1))
