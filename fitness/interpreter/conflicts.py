"""Whether the programs of a launch are independent: none loads or stores what another one stores.

Where that is seen to be so in one order of the programs, every other order gives the same results, and need not be
tried.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

GRANULE = 2  # log2 of the bytes that are watched as one; narrower elements of neighbours may seem to conflict
PENDING = 1 << 18  # elements that are looked at together, which costs far less than one access after the other
NOBODY, SEVERAL = 0, -1


class Conflicts:
    """Watches the memory of a plan for as long as nothing was found."""

    def __init__(self, first: int, end: int) -> None:
        """`first`, `end`: addresses of the memory, the end not included."""
        self._first = np.uint64(first)
        count = ((end - first) >> GRANULE) + 2
        self._stored, self._loaded = (np.zeros(count, np.int32) for _ in range(2))  # by which program
        self._program, self._pending = 0, 0
        # By kind and size of the elements: (program, addresses, mask) of each access.
        self._log: dict[tuple[str, int], list[tuple[int, np.ndarray, np.ndarray | None]]] = defaultdict(list)
        self._found = False
        self.gave_up = False

    @property
    def found(self) -> bool:
        self._settle()
        return self._found

    def begin_launch(self) -> None:
        """Launches are executed one after the other."""
        if not self.found:
            self._stored.fill(NOBODY)
            self._loaded.fill(NOBODY)
        self._program = 0

    def begin_program(self) -> None:
        self._program += 1

    def end_launch(self) -> None:
        """What it did is looked at when somebody asks."""

    def _give_up(self) -> None:
        """Programs meet in ways that are not watched."""
        self._found = self.gave_up = True
        self._log.clear()

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """A "load", "store" or "atomic" of elements of `size` bytes, at most 8.  The arrays are not to be changed."""
        if kind == "atomic":
            self._give_up()
        if self._found:
            return
        self._log[kind, size].append((self._program, addresses, mask))
        self._pending += addresses.size
        if self._pending > PENDING:
            self._settle()

    def _settle(self) -> None:
        if not self._log:
            return
        stored, loaded = (self._gathered(kind) for kind in ("store", "load"))
        self._log.clear()
        self._pending = 0
        for at, programs in stored:
            self._found |= _of_others(self._stored[at], programs) or _of_others(self._loaded[at], programs)
            self._stored[at] = programs
            self._found |= _of_others(self._stored[at], programs)
        for at, programs in loaded:
            self._found |= _of_others(self._stored[at], programs)
            before = self._loaded[at]
            self._loaded[at] = programs
            others = (self._loaded[at] != programs) | ((before != NOBODY) & (before != programs))
            self._loaded[at[others]] = SEVERAL

    def _gathered(self, kind: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """(granules, programs) of the accesses of a kind, for each size."""
        found = []
        for (of, size), log in self._log.items():
            if of != kind:
                continue
            addresses = np.concatenate([a.reshape(-1) for _, a, _ in log])
            programs = np.repeat(np.array([p for p, _, _ in log], np.int32), [a.size for _, a, _ in log])
            if any(mask is not None for _, _, mask in log):
                masks = [np.broadcast_to(True if m is None else m, a.shape).reshape(-1) for _, a, m in log]
                chosen = np.concatenate(masks).astype(bool, copy=False)
                addresses, programs = addresses[chosen], programs[chosen]
            offsets = (addresses - self._first).astype(np.int64)
            at = offsets >> GRANULE
            if size > 1 << GRANULE or (offsets % size).any():
                at = np.concatenate([at, (offsets + size - 1) >> GRANULE])
                programs = np.concatenate([programs, programs])
            found.append((at, programs))
        return found


def _of_others(noted: np.ndarray, programs: np.ndarray) -> bool:
    return bool(((noted != NOBODY) & (noted != programs)).any())
