"""Lays out all buffers of a plan in one file, separated by guard zones, and poisons them before use.

The driver maps the file while it fills it, the sandboxed interpreter while it executes; tensors are windows on it.  The
driver then copies the job's results into memory of its own (`contents`).  Offsets are multiples of 256 bytes, as those
of CUDA allocations are, so that the compiler's assumptions about alignment hold here too.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evo.core.records import Verdict
from fitness.frontend.plan import ITEMSIZE, LaunchPlan, PlanError, TensorRef
from fitness.sandbox.jobs import JobError
from fitness.sandbox.scratch import LeftError, created, opened

FILE_NAME = "buffers.bin"
ALIGNMENT = 256  # what cudaMalloc guarantees
GUARD = 1 << 16  # bytes before and after each buffer: an off-by-one row of up to 16384 float32 is caught


class Poison(NamedTuple):
    """The value of every byte in a buffer of floating-point numbers, and in one of other types."""

    floating: int
    other: int


# 0xFF... is a NaN in every floating-point type, and no right answer is NaN.  As an integer it would be -1, 255 or
# "true", and many right answers are those; 0xA5... is -1515870811 as int32.  The other poisons catch kernels that use
# the first one as a start value (NaN for "nothing there yet", a very small number for a maximum).  They are about 1e36
# and -1e36 as float32, 60000 and -60000 as float16, 2054847098 as int32.  None of them is a boolean.
POISONS = (Poison(0xFF, 0xA5), Poison(0x7B, 0x7A), Poison(0xFB, 0xA5))

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEMSIZE}


class Guards(NamedTuple):
    """Which bytes fill the guard zones: `guard_pattern`."""

    key: int = 0
    number: int = 1


GUARDS = Guards()


def guard_pattern(guards: Guards) -> np.ndarray:
    """The bytes of one guard zone: (GUARD,) uint8.  They cannot be guessed without the key."""
    generator = np.random.Generator(np.random.PCG64([guards.key, guards.number]))
    return as_guard(generator.integers(0, 256, GUARD, dtype=np.uint8), guards.number)


def as_guard(pattern: Any, number: int, start: int = 0) -> Any:
    """Changes random bytes (an array or a tensor, in place) to the content of a guard zone; returns them.

    start: position of the first byte in the file; only whether it is odd matters.
    number: if odd, the zone holds finite numbers of every size in every type wider than a byte.  If even, it holds NaN
    of random sign in every floating-point type, which shows reads of few bytes too.  A maximum ignores NaN, so both
    are needed.
    """
    low, high = pattern[start % 2 :: 2], pattern[1 - start % 2 :: 2]  # of each 16 bits.
    if number % 2:
        high &= 0xFB  # Not all bits of an exponent are set.
    else:
        pattern |= 0x7F
        low[...] = 0xFF  # Otherwise a bfloat16 or float32 might be finite.
    return pattern


def contents(path: Path, size: int) -> np.ndarray:
    """A copy of the bytes of a file that a job left, exactly `size` of them.

    Raises `fitness.sandbox.scratch.LeftError`.  The file is not mapped: a job may have freed blocks of it, and on a
    full disk access to those ends the process by SIGBUS.
    """
    with opened(path, size) as file:
        data = np.fromfile(file, np.uint8, count=size)
    if data.size != size:
        raise LeftError(f"expected {size} bytes in {path.name!r}, got {data.size}")
    return data


class Layout:
    """The place of each buffer of `plan` in the file: buffer `b` is at bytes `offsets[b]` .. `offsets[b] + nbytes`.

    guards: the content of the guard zones.  A plan that uses memory beyond its buffers has other results with other
    bytes there.  A process that only attaches the file does not need them.

    `mm` below is the mapped file (`create`, `attach`), a copy of it (`left`) or any writable buffer of `total` bytes.
    """

    def __init__(self, plan: LaunchPlan, guards: Guards = GUARDS) -> None:
        self.plan, self._bytes_of_guards = plan, guards
        self.offsets: list[int] = []
        position = 0
        for buffer in plan.buffers:
            start = _round_up(position + GUARD, ALIGNMENT)
            self.offsets.append(start)
            position = start + buffer.nbytes + GUARD
        self.total = max(position, 1)  # An empty file cannot be mapped.

    @functools.cached_property
    def _pattern_of_guards(self) -> np.ndarray:
        return guard_pattern(self._bytes_of_guards)

    def create(self, scratch: Path, name: str = FILE_NAME, poison: Poison = POISONS[0]) -> mmap.mmap:
        """A new mapped file in `scratch`, poisoned."""
        with created(scratch / name) as file:
            os.posix_fallocate(file.fileno(), 0, self.total)  # On a full disk this raises; without it SIGBUS follows.
            mm = mmap.mmap(file.fileno(), self.total)
        self.poison(mm, poison)
        return mm

    def attach(self, scratch: Path, name: str = FILE_NAME) -> mmap.mmap:
        """Maps the file that `create` made, in the job that writes to it.

        Raises `fitness.sandbox.scratch.LeftError` if it is not a regular file of this layout's size.
        """
        with opened(scratch / name, self.total, writable=True) as file:
            return mmap.mmap(file.fileno(), self.total)

    def left(self, scratch: Path, name: str = FILE_NAME) -> np.ndarray:
        """A copy of that file after a job used it.  Raises `fitness.sandbox.scratch.LeftError` as `attach`."""
        return contents(scratch / name, self.total)

    def poison(self, mm: Any, poison: Poison = POISONS[0]) -> None:
        """Fills every buffer with poison and every guard zone with its pattern."""
        data = np.frombuffer(mm, np.uint8)
        floats = {r.buffer for r in self.plan.refs() if DTYPES[r.dtype].is_floating_point}
        for b, (start, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            end = start + buffer.nbytes
            data[start:end] = poison.floating if b in floats else poison.other
            data[start - GUARD : start] = data[end : end + GUARD] = self._pattern_of_guards

    def write_inputs(self, mm: Any, tensors: Sequence[Any]) -> None:
        """Writes the tensors among the entry's arguments to their buffers.

        Raises PlanError if the plan (written by the untrusted recorder) describes other arguments than these.
        """
        for ref, tensor in self.checked_inputs(tensors):
            assign(self.view(mm, ref), tensor)

    def checked_inputs(self, tensors: Sequence[Any]) -> list[tuple[TensorRef, torch.Tensor]]:
        """The tensors among the entry's arguments, each with its window.  Raises PlanError as `write_inputs`."""
        found: list[tuple[TensorRef, torch.Tensor]] = []
        if len(tensors) != len(self.plan.inputs):
            raise PlanError(f"the plan has {len(self.plan.inputs)} arguments, the case has {len(tensors)}")
        for i, (ref, tensor) in enumerate(zip(self.plan.inputs, tensors, strict=True)):
            if isinstance(ref, TensorRef) != isinstance(tensor, torch.Tensor):
                raise PlanError(f"argument {i} is a tensor in the plan or in the case, but not in both")
            if isinstance(ref, TensorRef):
                self._check_input(i, ref, tensor)
                found.append((ref, tensor))
        return found

    def _check_input(self, i: int, ref: TensorRef, tensor: torch.Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        moving = [(s, t) for n, s, t in zip(ref.shape, ref.strides, tensor.stride(), strict=False) if n > 1]
        if ref.shape != tuple(tensor.shape) or ref.dtype != dtype or any(s != t for s, t in moving):
            raise PlanError(
                f"argument {i} is {ref.dtype}{list(ref.shape)} with strides {list(ref.strides)} in the plan, "
                f"{dtype}{list(tensor.shape)} with strides {list(tensor.stride())} in the case"
            )

    def view(self, mm: Any, ref: TensorRef) -> torch.Tensor:
        """The window `ref` as a tensor that shares the mapped memory."""
        dtype = DTYPES[ref.dtype]
        if ref.numel == 0:
            return torch.empty_strided(ref.shape, ref.strides, dtype=dtype)
        first = ref.offset * ITEMSIZE[ref.dtype]
        count = (ref.last_byte() - first) // ITEMSIZE[ref.dtype]
        flat = torch.frombuffer(mm, dtype=dtype, count=count, offset=self.offsets[ref.buffer] + first)
        return flat.as_strided(ref.shape, ref.strides)

    def read(self, mm: Any, ref: TensorRef) -> torch.Tensor:
        """A contiguous copy of the window `ref`.  Raises JobError(WRONG) for a boolean that is neither 0 nor 1."""
        if ref.dtype != "bool":
            return self.view(mm, ref).clone(memory_format=torch.contiguous_format)
        raw = self.view(mm, TensorRef(ref.buffer, "uint8", ref.shape, ref.strides, ref.offset))
        if raw.numel() and int(raw.max()) > 1:
            raise JobError(Verdict.WRONG, f"{self.name(ref.buffer)} holds booleans that were never written")
        return raw.to(torch.bool)

    def broken_guards(self, mm: Any) -> list[str]:
        """One line per guard zone that was changed since `poison`, e.g. "3 bytes after output 0 were overwritten"."""
        data = np.frombuffer(mm, np.uint8)
        found = []
        for b, (start, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            end = start + buffer.nbytes
            for side, zone in (("before", data[start - GUARD : start]), ("after", data[end : end + GUARD])):
                count = int((zone != self._pattern_of_guards).sum())
                if count:
                    found.append(f"{count} bytes {side} {self.name(b)} were overwritten")
        return found

    def buffer_bytes(self, mm: Any, b: int) -> np.ndarray:
        """The bytes of buffer `b` (a window, uint8, read-only)."""
        start = self.offsets[b]
        window = np.frombuffer(mm, np.uint8)[start : start + self.plan.buffers[b].nbytes]
        window.flags.writeable = False
        return window

    def name(self, b: int) -> str:
        """The name of buffer `b` in messages: "argument 0", "output 1" or "scratch buffer 2"."""
        owner = self.plan.buffers[b].input
        if owner is not None:
            return f"argument {owner}"
        outputs = [k for k, ref in enumerate(self.plan.outputs) if ref.buffer == b]
        return f"output {outputs[0]}" if outputs else f"scratch buffer {b}"


def assign(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target[...] = source`, even if elements of `target` share memory because a stride is 0 (`expand`)."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if stride == 0 and size > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


def laid_out_as(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values`, which have the shape and type of `x`, with the strides of `x` too.

    Arithmetic gives other strides if rows of `x` are padded or share their memory.
    """
    if values.stride() == x.stride():
        return values
    found = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    assign(found, values)
    return found


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
