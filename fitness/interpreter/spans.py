"""Stores sets of bytes as sorted, disjoint intervals: a gigabyte of contiguous accesses is one pair of numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

SECTOR = 32  # bytes: the unit that L2 and DRAM exchange.


class Spans:
    """A set of byte addresses: `starts[i] <= address < ends[i]`, sorted and disjoint (int64)."""

    __slots__ = ("ends", "starts")

    def __init__(self, starts: np.ndarray, ends: np.ndarray) -> None:
        self.starts, self.ends = starts, ends

    @classmethod
    def of_elements(cls, addresses: np.ndarray, itemsize: int) -> Spans:
        """The bytes of elements of `itemsize` bytes at `addresses` (any order and shape, duplicates allowed)."""
        flat = _in_rising_order(addresses.view(np.int64))
        if flat.size == 1:
            return cls(flat, flat + itemsize)
        gaps = np.flatnonzero(np.diff(flat) > itemsize)
        if gaps.size == 0:
            return cls(flat[:1], flat[-1:] + itemsize)
        starts = np.concatenate((flat[:1], flat[gaps + 1]))
        return cls(starts, np.concatenate((flat[gaps], flat[-1:])) + itemsize)

    @classmethod
    def union(cls, parts: Iterable[Spans]) -> Spans:
        """All bytes that are in any of the sets."""
        parts = [p for p in parts if p.starts.size]
        if len(parts) < 2:
            return parts[0] if parts else cls(np.empty(0, np.int64), np.empty(0, np.int64))
        starts = np.concatenate([p.starts for p in parts])
        ends = np.concatenate([p.ends for p in parts])
        return cls.merged(starts, ends)

    @classmethod
    def merged(cls, starts: np.ndarray, ends: np.ndarray) -> Spans:
        """The union of intervals in any order."""
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
        return cls(starts[first], reach[np.concatenate((first[1:] - 1, [starts.size - 1]))])

    @property
    def size(self) -> int:
        """Bytes in the set."""
        return int((self.ends - self.starts).sum())

    def blocks(self, unit: int) -> Spans:
        """The set rounded outwards to aligned blocks of `unit` bytes (a power of two)."""
        if unit == 1:
            return self
        starts, ends = self.starts & -unit, (self.ends + unit - 1) & -unit
        return Spans(starts, ends) if starts.size < 2 else Spans.merged(starts, ends)

    def repeated(self, shift: int, times: int) -> Spans:
        """Copies of the set moved by `shift`, 2 * `shift`, ... `times` * `shift` bytes."""
        moves = shift * np.arange(1, times + 1, dtype=np.int64)
        starts = (self.starts[:, None] + moves).ravel()
        return Spans.merged(starts, (self.ends[:, None] + moves).ravel())

    def alignment(self) -> int:
        """The largest power of two (at most 16) that divides every start and every end."""
        bits = int(np.bitwise_or.reduce(self.starts | self.ends)) | 16
        return bits & -bits


def _in_rising_order(addresses: np.ndarray) -> np.ndarray:
    """`addresses` flattened in rising order; both axes of a tile are tried before the addresses are sorted."""
    for candidate in (addresses, addresses.T) if addresses.ndim == 2 else (addresses,):
        flat = candidate.ravel()
        if flat.size == 1 or (flat[1:] >= flat[:-1]).all():
            return flat
    return np.unique(addresses)
