"""Holds the buffers of a plan in device memory: several copies in one allocation, guarded and poisoned.

An operation on all copies (poison, comparisons) is one operation on a tensor with the copies as its first dimension.
One by one, thirty-two copies of a small kernel would keep the host busy for longer than it runs.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fitness.frontend.memory import ALIGNMENT, DTYPES, GUARD, POISONS, Layout, Poison, as_guard, assign
from fitness.frontend.plan import ITEMSIZE, LaunchPlan, TensorRef

# Guarded bytes before the first and after the last buffer of a copy; between buffers it is GUARD before and after each.
EDGE = 1 << 20


def fill_bytes(zone: torch.Tensor, value: int) -> None:
    """Sets every byte of an aligned zone (its last dimension) to `value`, eight at a time."""
    whole = zone.shape[-1] // 8 * 8
    zone[..., :whole].view(torch.int64).fill_(int.from_bytes(bytes([value] * 8), "little", signed=True))
    if whole < zone.shape[-1]:
        zone[..., whole:].fill_(value)


def _left_free(ref: TensorRef, device: torch.device) -> torch.Tensor | None:
    """Returns a mask of the bytes of a buffer that a window on all of it does not hold, None if it holds each."""
    size = ITEMSIZE[ref.dtype]
    if ref.nbytes == ref.last_byte():
        return None
    free = torch.ones(ref.last_byte() // size, dtype=torch.bool, device=device)
    window = free.as_strided(ref.shape, ref.strides, ref.offset)
    assign(window, torch.zeros((), dtype=torch.bool, device=device).expand(ref.shape))
    return free.repeat_interleave(size) if bool(free.any()) else None


@functools.lru_cache(maxsize=16)
def _guard_masks(zones: tuple[tuple[int, int], ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what makes random bytes of all zones (start, end) the content of guard zones, by `as_guard`.

    The first is for finite numbers, by a bitwise and; the second for NaN, by a bitwise or.
    """
    masks = []
    for value, number in ((0xFF, 1), (0x00, 2)):
        parts = [torch.full((end - start,), value, dtype=torch.uint8, device=device) for start, end in zones]
        masks.append(torch.cat([as_guard(part, number, start) for part, (start, _) in zip(parts, zones, strict=True)]))
    return masks[0], masks[1]


class DeviceMemory(Layout):
    """One allocation with `copies` of all buffers of a plan: `fitness.frontend.memory.Layout` on a GPU.

    Every byte outside the buffers is guarded: nothing can be left there for a later replay.  A store beyond a buffer
    hits nothing unguarded within EDGE.
    """

    def __init__(self, plan: LaunchPlan, device: torch.device, copies: int = 1) -> None:
        super().__init__(plan)
        self.copies = copies
        pitch = -(-(EDGE + self.total + EDGE) // ALIGNMENT) * ALIGNMENT
        self._whole = torch.empty((copies, pitch), dtype=torch.uint8, device=device)
        self._floats = {r.buffer for r in plan.refs() if DTYPES[r.dtype].is_floating_point}
        self._gaps = list(self._between(pitch))
        self._sizes = [end - start for _, start, end in self._gaps]
        # PyTorch's own generator starts with the same seed in every process.
        self._generator = torch.Generator(device).manual_seed(secrets.randbits(63))
        self._pattern = torch.empty(sum(self._sizes), dtype=torch.uint8, device=device)
        self._guards = [self._whole[:, start:end] for _, start, end in self._gaps]
        self._finite, self._nan = _guard_masks(tuple((start, end) for _, start, end in self._gaps), device)
        self._changed = torch.zeros(copies, dtype=torch.bool, device=device)
        self._guard(1)
        refs = (ref for ref in plan.inputs if isinstance(ref, TensorRef))
        self._between_rows = {ref.buffer: rows for ref in refs if (rows := _left_free(ref, device)) is not None}

    def _between(self, pitch: int) -> Iterator[tuple[str, int, int]]:
        """Yields (label, start, end) of the zones before and after each buffer, in bytes of a copy."""
        end = 0
        previous = ""
        for b, (offset, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            start = EDGE + offset
            if previous:
                yield previous, end, start - GUARD
                end = start - GUARD
            yield f"before {self.name(b)}", end, start
            end, previous = start + buffer.nbytes, f"after {self.name(b)}"
        yield previous or "in no buffer", end, pitch

    def _guard(self, number: int) -> None:
        """Fills the guard zones with other random bytes, by the rule of `fitness.frontend.memory.as_guard`."""
        self._pattern.random_(0, 256, generator=self._generator)
        if number % 2:
            self._pattern &= self._finite
        else:
            self._pattern |= self._nan
        for zone, pattern in zip(self._guards, self._pattern.split(self._sizes), strict=True):
            zone.copy_(pattern)

    def renew_guards(self, number: int) -> None:
        """Enqueues: checks the guard zones, then fills them with other bytes."""
        self.look_at_guards()
        self._guard(number)

    @property
    def arenas(self) -> torch.Tensor:
        """Returns all buffers and the zones between them: (copies, `total` bytes)."""
        return self._whole[:, EDGE : EDGE + self.total]

    def address(self, ref: TensorRef, copy: int) -> int:
        start = EDGE + self.offsets[ref.buffer] + ref.offset * ITEMSIZE[ref.dtype]
        return self._whole.data_ptr() + copy * self._whole.shape[1] + start

    def windows(self, ref: TensorRef) -> torch.Tensor:
        """Returns the window `ref` on every copy: (copies, *shape of the window), sharing the memory."""
        size = ITEMSIZE[ref.dtype]
        if ref.numel == 0:
            strides = (0, *ref.strides)
            return torch.empty_strided(
                (self.copies, *ref.shape), strides, dtype=DTYPES[ref.dtype], device=self._whole.device
            )
        flat = self._whole.view(DTYPES[ref.dtype])
        start = (EDGE + self.offsets[ref.buffer]) // size + ref.offset
        return flat.as_strided((self.copies, *ref.shape), (flat.shape[1], *ref.strides), start)

    def window(self, ref: TensorRef, copy: int = 0) -> torch.Tensor:
        return self.windows(ref)[copy]

    def write(self, arguments: Sequence[Any], copy: int | slice = 0) -> None:
        """Writes the entry's arguments to a copy, or to several.  Raises PlanError if they do not fit the plan."""
        for ref, tensor in self.checked_inputs(arguments):
            target = self.windows(ref)[copy]
            assign(target, tensor.expand_as(target))

    def poison_owned(self, poison: Poison = POISONS[0]) -> None:
        """Fills the plan's own buffers with values that no right answer has, and the gaps between rows of arguments."""
        for b, (start, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            zone = self._whole[:, EDGE + start : EDGE + start + buffer.nbytes]
            value = poison.floating if b in self._floats else poison.other
            if buffer.input is None:
                fill_bytes(zone, value)
            elif b in self._between_rows:
                zone.masked_fill_(self._between_rows[b], value)

    def look_at_guards(self) -> None:
        """Enqueues a comparison whose result `overwritten` returns."""
        self._changed |= (torch.cat(self._guards, dim=1) != self._pattern).any(dim=1)

    def overwritten(self) -> list[str]:
        """Returns one line per guard zone that had changed at a look, e.g. "3 bytes after output 0 were overwritten".

        The lines are those of one copy.
        """
        bad = [copy for copy, is_bad in enumerate(self._changed.tolist()) if is_bad]
        if not bad:
            return []
        parts = (torch.cat([zone[bad[0]] for zone in self._guards]) != self._pattern).split(self._sizes)
        counts = [int(part.sum()) for part in parts]
        found = [
            f"{count} bytes {label} were overwritten"
            for (label, _, _), count in zip(self._gaps, counts, strict=True)
            if count
        ]
        return found or ["bytes around buffers were overwritten, and put back later"]
