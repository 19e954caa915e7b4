"""Which memory of a plan holds what it would hold if all programs had been executed, when only some are.

Programs that are executed alone are right as long as they read nothing that others would have written.  A byte is
*valid* if it belongs to an input, if a whole step wrote it (a fill, a copy, a launch of which all programs were
executed), or if an executed program stored it.  A program that loads any other byte is abandoned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fitness.frontend.memory import Layout
from fitness.frontend.plan import TensorRef


class Abandoned(Exception):
    """The program needs what other ones, which are not executed, would have written."""


class Elements(NamedTuple):
    """Elements of `size` bytes at `offsets` (int64) of a plan's memory."""

    offsets: np.ndarray
    size: int

    def bytes(self) -> np.ndarray:
        return (self.offsets[:, None] + np.arange(self.size)).reshape(-1)


class Stored(NamedTuple):
    """What one program stored: `launch` and `number` of the program in its grid (x fastest)."""

    launch: int
    number: int
    elements: list[Elements]


class Missing(NamedTuple):
    """What a program of a launch could not load."""

    launch: int
    offsets: np.ndarray


class Validity:
    """Watches the loads and stores of the executed programs, as `fitness.interpreter.conflicts.Conflicts` does."""

    found = True  # nothing is known of other orders of the programs

    def __init__(self, layout: Layout, first: int) -> None:
        """first: address of the layout's memory."""
        self._offsets, self._first = layout.offsets, first
        self._valid = np.zeros(layout.total, bool)  # by byte; pages that nobody touches take no memory
        self._sizes = [buffer.nbytes for buffer in layout.plan.buffers]
        # Buffers of which every byte is valid.
        self._whole = {b for b, buffer in enumerate(layout.plan.buffers) if buffer.input is not None}
        self._buffers: set[int] = set()  # that the present launch writes to
        self._all = False  # whether all programs of the launch are executed
        self._launch = -1
        self.number = 0  # of the next program
        self._program: Stored | None = None  # the present one
        self._of_launch: list[Stored] = []  # those before it in the present launch
        self._met: list[Elements] = []  # changed by atomics of the present launch
        self._seen: set[int] = set()  # buffers that it was seen to write to
        self.programs: list[Stored] = []  # of the launches before
        self.missing: list[Missing] = []  # what made programs be abandoned

    # --- steps that are not launches ---------------------------------------------------------------------------------

    def write(self, dst: TensorRef, sources: Sequence[TensorRef] = ()) -> None:
        """To be called for a fill, or for a copy of `sources`."""
        self._forget({dst.buffer})
        if all(source.buffer in self._whole for source in sources) and dst.nbytes == self._sizes[dst.buffer]:
            self._whole.add(dst.buffer)

    # --- launches ----------------------------------------------------------------------------------------------------

    def expect(self, buffers: set[int], everything: bool) -> None:
        """To be called before a launch, with the buffers it writes to, and whether all of its programs are executed."""
        self._buffers, self._all = buffers, everything

    def begin_launch(self) -> None:
        self._launch += 1
        self._program, self._of_launch, self._met, self._seen = None, [], [], set()

    def begin_program(self) -> None:
        self._end_program()
        self._program = Stored(self._launch, self.number, [])

    def abandon(self) -> None:
        """The present program ends here, so its launch does not leave what it would."""
        assert self._program is not None
        for elements in self._program.elements:
            self._valid[elements.bytes()] = False
        self._program = None
        self._all = False

    def end_launch(self) -> None:
        self._end_program()
        if not self._all:
            self._forget(self._buffers | self._seen)
            for program in self._of_launch:
                for elements in program.elements:
                    self._valid[elements.bytes()] = True
            for elements in self._met:
                self._valid[elements.bytes()] = False
        self.programs += self._of_launch

    def _end_program(self) -> None:
        if self._program is not None:
            self._of_launch.append(self._program)

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """A "load", "store" or "atomic" of elements of `size` bytes.  Raises Abandoned.

        What atomics leave is not valid unless all programs are executed.
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
            self._met.append(elements)
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
        """The buffer that lies at or before an offset in the memory."""
        return bisect_right(self._offsets, offset) - 1

    def offset_of(self, buffer: int) -> int:
        """Where a buffer begins in the memory."""
        return self._offsets[buffer]

    def kept(self, stored: Sequence[Elements]) -> list[Elements]:
        """What of it is still valid."""
        found = []
        for elements in stored:
            found.append(Elements(elements.offsets[self._are_stored(elements)], elements.size))
        return found

    def _are_stored(self, elements: Elements) -> np.ndarray:
        """Of which elements every byte was stored and is valid."""
        return self._valid[elements.bytes()].reshape(-1, elements.size).all(axis=1)

    def _forget(self, buffers: set[int]) -> None:
        """Nothing in these buffers is valid any more."""
        self._whole -= buffers
        for program in self.programs:
            for elements in program.elements:
                at = np.searchsorted(self._offsets, elements.offsets, side="right") - 1
                lost = Elements(elements.offsets[np.isin(at, list(buffers))], elements.size)
                self._valid[lost.bytes()] = False
