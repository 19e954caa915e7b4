"""Watches how the programs of a launch share memory, while they are executed one after the other.

`Conflicts` finds out whether programs are independent: none loads or stores what another one stores.  If they are
independent in one order, every other order has the same results and is not tried.

`ConcurrentMemory` executes them as if all ran at once: none sees the stores of another one.  One after the other, a
program sees all stores of those before.  On a device all programs may load before any of them stores.  If two programs
each add to the same element, one addition is lost; a value that is stored back unchanged undoes a store of another.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

GRANULE = 2  # log2 of the bytes that are watched together; narrower elements of neighbours may seem to conflict.
PENDING = 1 << 18  # elements that are checked together, which is far cheaper than one access after the other.
NO_PROGRAM, SEVERAL = 0, -1


class Conflicts:
    """Watches the memory of a plan until it finds a conflict."""

    def __init__(self, first: int, end: int) -> None:
        """first, end: addresses of the memory, the end not included."""
        self._first = np.uint64(first)
        count = ((end - first) >> GRANULE) + 2
        self._stored, self._loaded = (np.zeros(count, np.int32) for _ in range(2))  # The program, by granule.
        self._program, self._pending = 0, 0
        # By kind and size of the elements: (program, addresses, mask) of each access.
        self._log: dict[tuple[str, int], list[tuple[int, np.ndarray, np.ndarray | None]]] = defaultdict(list)
        self._found = False
        self.gave_up = False

    @property
    def found(self) -> bool:
        """Whether programs of a launch were found to depend on each other."""
        self._check_pending()
        return self._found

    def begin_launch(self) -> None:
        """Forgets the accesses of the launch before: launches never run at the same time."""
        if not self.found:
            self._stored.fill(NO_PROGRAM)
            self._loaded.fill(NO_PROGRAM)
        self._program = 0

    def begin_program(self) -> None:
        """Assigns the accesses from now on to the next program."""
        self._program += 1

    def end_launch(self) -> None:
        """Does nothing: `found` checks the accesses."""

    def _give_up(self) -> None:
        """Counts the programs as dependent, since they communicate in ways that are not watched."""
        self._found = self.gave_up = True
        self._log.clear()

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """Notes a "load", "store" or "atomic" of elements of `size` bytes, at most 8.

        The caller must not change the arrays afterwards.
        """
        if kind == "atomic":
            self._give_up()
        if self._found:
            return
        self._log[kind, size].append((self._program, addresses, mask))
        self._pending += addresses.size
        if self._pending > PENDING:
            self._check_pending()

    def _check_pending(self) -> None:
        """Compares the accesses noted so far, and forgets them."""
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
            others = (self._loaded[at] != programs) | ((before != NO_PROGRAM) & (before != programs))
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
    """Whether another program than this one accessed any of the granules."""
    return bool(((noted != NO_PROGRAM) & (noted != programs)).any())


class ConcurrentMemory:
    """Watches accesses, and starts each program with the memory as it was before the launch.

    When the launch ends, the memory has all stores; those of later programs replace those of earlier ones.
    """

    found = True  # This order is tried only for programs that depend on each other.

    def __init__(self, memory: np.ndarray, first: int) -> None:
        """memory: (bytes,) uint8, changed in place; first: its address."""
        self._memory, self._first = memory, np.uint64(first)
        self._before = self._after = memory
        self._stored: list[np.ndarray] = []  # offsets of the bytes that the current program stored.

    def begin_launch(self) -> None:
        """Keeps the memory with which every program of the launch starts."""
        self._before, self._after = self._memory.copy(), self._memory.copy()

    def begin_program(self) -> None:
        """Keeps the stores of the program before, and takes them back from the memory."""
        if self._stored:
            at = np.concatenate(self._stored)
            self._after[at] = self._memory[at]
            self._memory[at] = self._before[at]
            self._stored.clear()

    def end_launch(self) -> None:
        """Puts the stores of all programs into the memory."""
        self.begin_program()
        self._memory[...] = self._after

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """Notes stores; atomics are executed one after the other."""
        if kind == "store":
            chosen = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
            offsets = (chosen.reshape(-1) - self._first).astype(np.int64)
            self._stored.append((offsets[:, None] + np.arange(size)).reshape(-1))
