"""Computes one number for each copy of a window, which says whether memory still holds the same; in one pass.

Every 64-bit word is mixed with its place and with a key that only this process knows.  The results are added up, modulo
2^64.  A plain sum of the words would not change if elements moved, and a kernel that knew the key could compensate its
changes.  The mixing is that of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014).
"""

from __future__ import annotations

import functools
import secrets
from typing import Any

import torch

from fitness.cuda.own_kernels import ALIGNED, compiled, enqueue, programs_of
from fitness.frontend.plan import TensorRef
from fitness.verify.compare import bits

BLOCK = 1024
SOURCE = """import triton
import triton.language as tl

@triton.jit
def fingerprint(words, out, n, pitch, key, BLOCK: tl.constexpr):
    copy = tl.program_id(1).to(tl.int64)
    total = tl.zeros([BLOCK], tl.uint64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in range(start, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        i = (first + tl.arange(0, BLOCK)).to(tl.int64)
        x = tl.load(words + copy * pitch + i, mask=i < n, other=0)
        x = (x ^ (i * -7046029254386353131 + key)).to(tl.uint64, bitcast=True)
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        total += tl.where(i < n, x ^ (x >> 31), 0)
    tl.store(out + copy * tl.num_programs(0) + tl.program_id(0), tl.sum(total, 0).to(tl.int64, bitcast=True))
"""
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_STEP = 0x9E3779B97F4A7C15 - 2**64

_KEY = secrets.randbits(62)


def fingerprint(windows: torch.Tensor, out: torch.Tensor) -> None:
    """Enqueues: `out[i]` becomes the number of copy `i`. windows: (copies, *shape); out: (copies,), int64."""
    words, rest = _words(windows)
    kernel = _kernel(words.device.index) if words.is_cuda else None
    parts = _mixed(words) if kernel is None else _parts(kernel, words)
    torch.sum(parts, dim=1, dtype=torch.int64, out=out)
    if rest is not None:
        out += _mixed(rest, words.shape[1]).sum(dim=1, dtype=torch.int64)
        rest.zero_()  # a kernel must not find results here
    if words.untyped_storage().data_ptr() != windows.untyped_storage().data_ptr():
        words.zero_()


def prepare(index: int) -> None:
    """Loads the kernel on CUDA device `index`, which takes tenths of a second."""
    _kernel(index)


def _words(windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the bits of each copy as 64-bit integers, (copies, words), and the last elements that fill no word.

    Each row is contiguous.  Elements that share memory (`expand`) count once.
    """
    for dim in range(1, windows.dim()):
        windows = windows.narrow(dim, 0, 1) if windows.stride(dim) == 0 and windows.shape[dim] else windows
    size, inner = windows.dtype.itemsize, windows[0]
    aligned = inner.data_ptr() % ALIGNED == 0 and windows.stride(0) * size % ALIGNED == 0
    if not (inner.is_contiguous() and aligned):
        pitch = -(-inner.numel() * size // ALIGNED) * ALIGNED // size
        rows = torch.zeros((len(windows), pitch), dtype=bits(windows).dtype, device=windows.device)
        rows[:, : inner.numel()].view(windows.shape).copy_(bits(windows))
        return rows.view(torch.int64), None
    flat = windows.as_strided((len(windows), inner.numel()), (windows.stride(0), 1), windows.storage_offset())
    whole = inner.nbytes // 8 * 8 // size
    rest = bits(flat[:, whole:]).to(torch.int64, copy=True) if whole < inner.numel() else None
    return flat[:, :whole].view(torch.int64), rest


def _parts(kernel: Any, words: torch.Tensor) -> torch.Tensor:
    """Returns sums over parts of each row: (copies, programs)."""
    copies, n = words.shape
    programs = max(min(-(-n // BLOCK), -(-programs_of(words.device) // copies)), 1)
    parts = torch.empty((copies, programs), dtype=torch.int64, device=words.device)
    args = {"words": words.data_ptr(), "out": parts.data_ptr(), "n": n, "pitch": words.stride(0), "key": _KEY}
    enqueue(kernel, words.device, (programs, copies, 1), {**args, "BLOCK": BLOCK})
    return parts


def _mixed(words: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Returns what the kernel adds up, for other devices; the places of the words begin with `first`."""
    x = words ^ ((torch.arange(words.shape[1], device=words.device) + first) * _STEP + _KEY)
    for shift, factor in _ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Returns `x >> by` of unsigned numbers."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@functools.cache
def _kernel(index: int) -> Any:
    """Returns the loaded kernel on CUDA device `index`; None for an unsupported GPU."""
    tensor, count = TensorRef(0, "int64", (1,), (1,)), 2**40 + 1
    args = {"words": tensor, "out": tensor, "pitch": count, "key": count, "BLOCK": BLOCK}
    return compiled(SOURCE, "fingerprint", args, index)
