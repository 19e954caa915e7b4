"""Tracks which bytes of a plan's memory are right, if only some programs of its launches are executed.

A program that is executed without the others is right as long as it reads nothing that others would have written.  A
byte is *valid* in three cases: it belongs to an input, a whole step wrote it, or an executed program stored it.  A
whole step is a fill, a copy, or a launch of which all programs are executed.  A program that loads any other byte is
abandoned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitness.frontend.memory import Layout
from fitness.frontend.plan import TensorRef


class Abandoned(Exception):
    """The program needs bytes of programs that are not executed."""


class Elements(NamedTuple):
    """Elements of `size` bytes at `offsets` (int64) of a plan's memory."""

    offsets: np.ndarray
    size: int

    def bytes(self) -> np.ndarray:
        """The offsets of all their bytes."""
        return (self.offsets[:, None] + np.arange(self.size)).reshape(-1)


class Stored(NamedTuple):
    """The elements that one program stored.  number: of the program in its grid (x fastest)."""

    launch: int
    number: int
    elements: list[Elements]


class Missing(NamedTuple):
    """The offsets that a program of a launch loaded and that were not valid."""

    launch: int
    offsets: np.ndarray


class Validity:
    """Watches the loads and stores of the executed programs; same interface as `conflicts.Conflicts`."""

    found = True  # Other orders of the programs may have other results.

    def __init__(self, layout: Layout, first: int) -> None:
        """first: address of the layout's memory."""
        self._offsets, self._first = layout.offsets, first
        self._valid = np.zeros(layout.total, bool)  # by byte; untouched pages take no memory.
        self._sizes = [buffer.nbytes for buffer in layout.plan.buffers]
        # Buffers of which every byte is valid.
        self._whole = {b for b, buffer in enumerate(layout.plan.buffers) if buffer.input is not None}
        self.number = 0  # Number of the next program.
        self.programs: list[Stored] = []  # Programs of earlier launches.
        self.missing: list[Missing] = []  # The loads for which programs were abandoned.
        # The current launch: its number; whether all programs are executed; the buffers that it is expected to write to
        # and those that it wrote to; its earlier programs, the current one, and elements that atomics changed.
        self._launch, self._all = -1, False
        self._buffers: set[int] = set()
        self._seen: set[int] = set()
        self._of_launch: list[Stored] = []
        self._program: Stored | None = None
        self._atomics: list[Elements] = []

    # --- steps that are not launches ---------------------------------------------------------------------------------

    def write(self, dst: TensorRef, sources: Sequence[TensorRef] = ()) -> None:
        """Notes a fill of `dst`, or a copy from `sources` to it."""
        self._forget({dst.buffer})
        if all(source.buffer in self._whole for source in sources) and dst.nbytes == self._sizes[dst.buffer]:
            self._whole.add(dst.buffer)

    # --- launches ----------------------------------------------------------------------------------------------------

    def expect(self, buffers: set[int], everything: bool) -> None:
        """Announces a launch: the buffers it writes to, and whether all of its programs are executed."""
        self._buffers, self._all = buffers, everything

    def begin_launch(self) -> None:
        """Begins the launch that `expect` announced."""
        self._launch += 1
        self._program, self._of_launch, self._atomics, self._seen = None, [], [], set()

    def begin_program(self) -> None:
        """Ends the current program and begins the one of `number`."""
        self._end_program()
        self._program = Stored(self._launch, self.number, [])

    def abandon(self) -> None:
        """Drops the current program and its stores; its launch is no longer whole."""
        assert self._program is not None
        for elements in self._program.elements:
            self._valid[elements.bytes()] = False
        self._program = None
        self._all = False

    def end_launch(self) -> None:
        """Ends the launch: unless all its programs ran, only their own stores are valid in the buffers it wrote to."""
        self._end_program()
        if not self._all:
            self._forget(self._buffers | self._seen)
            for program in self._of_launch:
                for elements in program.elements:
                    self._valid[elements.bytes()] = True
            for elements in self._atomics:
                self._valid[elements.bytes()] = False
        self.programs += self._of_launch

    def _end_program(self) -> None:
        if self._program is not None:
            self._of_launch.append(self._program)

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """Notes a "load", "store" or "atomic" of elements of `size` bytes; raises Abandoned for invalid bytes.

        The results of atomics are valid only if all programs are executed.
        """
        chosen = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
        if not chosen.size:
            return
        elements = Elements(chosen.reshape(-1).astype(np.int64) - self._first, size)
        if kind != "store" and not (valid := self._are_valid(elements)).all():
            self.missing.append(Missing(self._launch, elements.offsets[~valid]))
            raise Abandoned
        if kind == "store":
            assert self._program is not None
            self._program.elements.append(elements)
            self._valid[elements.bytes()] = True
        elif kind == "atomic":
            self._atomics.append(elements)
        if kind != "load":
            self._seen.add(self.buffer_of(int(elements.offsets[0])))

    def _are_valid(self, elements: Elements) -> np.ndarray:
        low, high = int(elements.offsets.min()), int(elements.offsets.max()) + elements.size
        buffer = self.buffer_of(low)
        if buffer in self._whole and high <= self._offsets[buffer] + self._sizes[buffer]:
            return np.ones(1, bool)
        at = np.searchsorted(self._offsets, elements.offsets, side="right") - 1
        return np.isin(at, list(self._whole)) | self._are_stored(elements)

    def buffer_of(self, offset: int) -> int:
        """The number of the last buffer that begins at or before an offset in the memory."""
        return bisect_right(self._offsets, offset) - 1

    def offset_of(self, buffer: int) -> int:
        """The offset of a buffer in the memory."""
        return self._offsets[buffer]

    def kept(self, stored: Sequence[Elements]) -> list[Elements]:
        """Those of the stored elements that are still valid."""
        found = []
        for elements in stored:
            found.append(Elements(elements.offsets[self._are_stored(elements)], elements.size))
        return found

    def _are_stored(self, elements: Elements) -> np.ndarray:
        """For each element, whether every byte of it was stored and is valid."""
        return self._valid[elements.bytes()].reshape(-1, elements.size).all(axis=1)

    def _forget(self, buffers: set[int]) -> None:
        """Makes everything in these buffers invalid."""
        self._whole -= buffers
        for program in self.programs:
            for elements in program.elements:
                at = np.searchsorted(self._offsets, elements.offsets, side="right") - 1
                lost = Elements(elements.offsets[np.isin(at, list(buffers))], elements.size)
                self._valid[lost.bytes()] = False
