"""Finds loads outside of an array, and gives lanes that the language leaves undefined a value that shows.

Both mistakes give a right result most of the time, so results do not show them:

- A load of an address outside of the array that its pointer comes from.  The pointer type of a kernel's argument
  carries that array (`Arrays`), and pointer arithmetic keeps the type, so each access is compared with the right array.
  Lanes that a mask leaves out may point anywhere.
- A lane that a mask leaves out of a load without `other`, or a boundary check without `padding_option`.  Triton leaves
  its value undefined.  NVIDIA GPUs mostly give zero.  Here it is a NaN, or a very large number of either sign
  (`Undefined`), never zero.  A kernel is right if it neither stores such a lane nor reduces over one.

If the task has a reference, a candidate may do neither.  If the seed kernel is the reference, the seed decides
(`Habits`).  Candidates may load beyond their arrays if the seed does.  Undefined lanes are zeros if the seed's results
depend on them.  The bytes beyond the arrays still differ between executions
(`fitness.frontend.memory.guard_pattern`).  A store beyond an array is always wrong.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from fitness.frontend.memory import POISONS
from fitness.interpreter.numerics import numpy_dtype

Place = tuple[str, int]  # a file and a line.


class Habits(NamedTuple):
    """What candidates may do because the seed kernel, which is the reference, does it too."""

    loads_beyond: bool = False
    needs_zeros: bool = False  # in undefined lanes.


NO_HABITS = Habits()


class Array(NamedTuple):
    """One buffer of a plan in memory; `name` is for messages."""

    address: int
    nbytes: int
    name: str


class Arrays:
    """The arrays that a pointer may point into."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = tuple(arrays)
        self._first = np.uint64(arrays[0].address if arrays else 0)
        self._nbytes = arrays[0].nbytes if arrays else 0

    def at(self, address: int) -> Arrays:
        """The one array that holds the address; all of them if no array does, as an empty array has no address."""
        found = [a for a in self._arrays if a.address <= address < a.address + a.nbytes]
        return Arrays(found or self._arrays)

    def united(self, other: Arrays) -> Arrays:
        """These arrays and those of `other`."""
        return Arrays(tuple(dict.fromkeys((*self._arrays, *other._arrays))))

    def hold_all(self, addresses: np.ndarray, size: int) -> bool:
        """Whether each element of `size` bytes is in the first array, as a quick test."""
        return int((addresses - self._first).max()) <= self._nbytes - size

    def outside(self, addresses: np.ndarray, size: int) -> str:
        """What is outside, e.g. "8 bytes after argument 0"; "" if each element of `size` bytes is in one array."""
        left = addresses.reshape(-1)
        for array in self._arrays:
            start, last = array.address, array.address + array.nbytes - size
            left = left[(left < start) | (left > last)] if last >= start else left
        if not left.size:
            return ""
        names = " and ".join(array.name for array in self._arrays)
        count = f"{np.unique(left).size * size} bytes"
        if len(self._arrays) != 1:
            return f"{count} outside of {names or 'all arrays'}"
        side = "before" if int(left.max()) < self._arrays[0].address else "after"
        return f"{count} {side} {names}"


def led_by(dtype: tl.dtype, arrays: Arrays | None) -> tl.dtype:
    """The pointer type marked as that of pointers into `arrays`.  It is changed, so it must not be shared."""
    if arrays is not None:
        dtype.arrays = arrays  # type: ignore[attr-defined]
    return dtype


def arrays_of(dtype: tl.dtype) -> Arrays | None:
    """The arrays that pointers of this type point into, None if unknown."""
    return dtype.__dict__.get("arrays")


def like(dtype: tl.dtype, *sources: tl.dtype) -> tl.dtype:
    """The type of values computed from values of other types; a pointer type gets the arrays of all of them."""
    if not dtype.is_ptr():
        return dtype
    origins = [arrays for source in sources if (arrays := arrays_of(source)) is not None]
    if all(arrays is arrays_of(dtype) for arrays in origins):
        return dtype
    joined = origins[0]
    for arrays in origins[1:]:
        joined = joined.united(arrays)
    return led_by(tl.pointer_type(dtype.element_ty, dtype.address_space, dtype.const), joined)


_PLACES = len(POISONS)


class Undefined:
    """Makes the values of undefined lanes."""

    def __init__(self, zeros: bool = False) -> None:
        self._zeros, self._turn = zeros, 0
        self._rows: dict[str, np.ndarray] = {}

    def block(self, shape: tuple[int, ...], dtype: tl.dtype) -> np.ndarray:
        """The undefined values of one load.

        Neighbours differ, so that a maximum shows them as well as a sum.  So do the first lanes of successive loads.
        """
        if self._zeros:
            return np.zeros(shape, numpy_dtype(dtype))
        size = math.prod(shape)
        row = self._rows.get(dtype.name)
        if row is None or row.size < size + _PLACES:
            row = self._rows[dtype.name] = np.resize(_undefined(dtype), size + _PLACES)
        self._turn = (self._turn + 1) % _PLACES
        return row[self._turn : self._turn + size].reshape(shape)


def _undefined(dtype: tl.dtype) -> np.ndarray:
    kind = np.dtype(numpy_dtype(dtype))
    values = [poison.floating if dtype.is_floating() else poison.other for poison in POISONS]
    return np.repeat(np.array(values, np.uint8), kind.itemsize).view(kind)


class Notes:
    """The first event of each kind in one execution of a plan: (text, places in the source)."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, list[Place]]] = {}

    def add(self, kind: str, what: str) -> None:
        """Notes an event, unless there was one of its kind."""
        if kind not in self.found:
            self.found[kind] = what, list(_places())


def _places() -> Iterator[Place]:
    """The places of all calls on the stack, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
