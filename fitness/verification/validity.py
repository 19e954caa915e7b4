"""Which memory of a plan holds what it would hold if all programs had been executed, when only some are.

Programs that are executed alone are right as long as they read nothing that others would have written.  A byte is
*valid* if it belongs to an input, if a whole step wrote it (a fill, a copy, a launch of which all programs were
executed), or if an executed program stored it.  A program that loads any other byte is abandoned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fitness.memory import Layout
from fitness.plan import TensorRef


class Abandoned(Exception):
    """The program needs what another one, which is not executed, would have written."""


class Elements(NamedTuple):
    """Elements of `size` bytes at `offsets` (int64) of a plan's memory."""

    offsets: np.ndarray
    size: int

    def bytes(self) -> np.ndarray:
        return (self.offsets[:, None] + np.arange(self.size)).reshape(-1)


class Validity:
    """Watches the loads and stores of the executed programs, as `fitness.verification.conflicts.Conflicts` does."""

    found = True  # nothing is known of other orders of the programs

    def __init__(self, layout: Layout, first: int, written: Iterable[int]) -> None:
        """first: address of the layout's memory; written: buffers of arguments that kernels may write to."""
        self._offsets, self._first = layout.offsets, first
        self._valid = np.zeros(layout.total, bool)  # by byte; pages that nobody touches take no memory
        self._sizes = [buffer.nbytes for buffer in layout.plan.buffers]
        inputs = {b for b, buffer in enumerate(layout.plan.buffers) if buffer.input is not None}
        self._constant = inputs - set(written)
        self._whole = set(inputs)  # buffers of which every byte is valid
        self._buffers: set[int] = set()  # that the present launch may write to
        self._all = False  # whether all programs of the launch are executed
        self._stored: list[Elements] = []  # by the present program
        self._of_launch: list[list[Elements]] = []  # by each program of the present launch
        self._met: list[Elements] = []  # changed by atomics of the present launch
        self.programs: list[list[Elements]] = []  # what each program stored, of the launches before
        self.abandoned = 0

    # --- steps that are not launches ---------------------------------------------------------------------------------

    def write(self, dst: TensorRef, sources: Sequence[TensorRef] = ()) -> None:
        """To be called for a fill, or for a copy of `sources`."""
        self._forget({dst.buffer})
        if all(source.buffer in self._whole for source in sources) and dst.nbytes == self._sizes[dst.buffer]:
            self._whole.add(dst.buffer)

    # --- launches ----------------------------------------------------------------------------------------------------

    def expect(self, buffers: set[int], everything: bool) -> None:
        """To be called before a launch, with its buffers, and whether all of its programs are executed."""
        self._buffers, self._all = buffers - self._constant, everything

    def begin_launch(self) -> None:
        self._of_launch, self._met = [], []

    def begin_program(self) -> None:
        self._of_launch.append(self._stored)
        self._stored = []

    def abandon(self) -> None:
        """The present program ends here, so its launch does not leave what it would."""
        for elements in self._stored:
            self._valid[elements.bytes()] = False
        self._stored = []
        self._all = False
        self.abandoned += 1

    def end_launch(self) -> None:
        self.begin_program()
        if not self._all:
            self._forget(self._buffers)
            for stored in self._of_launch:
                for elements in stored:
                    self._valid[elements.bytes()] = True
            for elements in self._met:
                self._valid[elements.bytes()] = False
        self.programs += [stored for stored in self._of_launch if stored]

    def access(self, kind: str, addresses: np.ndarray, mask: np.ndarray | None, size: int) -> None:
        """A "load", "store" or "atomic" of elements of `size` bytes.  Raises Abandoned.

        What atomics leave is not valid unless all programs are executed.
        """
        chosen = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
        if not chosen.size:
            return
        elements = Elements(chosen.reshape(-1).astype(np.int64) - self._first, size)
        if kind != "store" and not self._are_valid(elements):
            raise Abandoned
        if kind == "store":
            self._stored.append(elements)
            self._valid[elements.bytes()] = True
        elif kind == "atomic":
            self._met.append(elements)

    def _are_valid(self, elements: Elements) -> bool:
        low, high = int(elements.offsets.min()), int(elements.offsets.max()) + elements.size
        buffer = bisect_right(self._offsets, low) - 1
        if buffer in self._whole and high <= self._offsets[buffer] + self._sizes[buffer]:
            return True
        at = np.searchsorted(self._offsets, elements.offsets, side="right") - 1
        return bool((np.isin(at, list(self._whole)) | self._are_stored(elements)).all())

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
        for stored in self.programs:
            for elements in stored:
                at = np.searchsorted(self._offsets, elements.offsets, side="right") - 1
                lost = Elements(elements.offsets[np.isin(at, list(buffers))], elements.size)
                self._valid[lost.bytes()] = False
