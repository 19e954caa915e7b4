"""Compares tensors as bits: NaN equals itself, and 0.0 is not -0.0."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fitness.cuda.own_kernels import compiled, launched, suits
from fitness.frontend.plan import TensorRef

BLOCK = 2048
SOURCE = """import triton
import triton.language as tl

@triton.jit
def differences(a, b, out, n, BLOCK: tl.constexpr):
    count = tl.zeros([BLOCK], tl.int32)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in range(start, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        differs = tl.load(a + i, mask=i < n, other=0) != tl.load(b + i, mask=i < n, other=0)
        count |= differs.to(tl.int32)
    tl.store(out + tl.program_id(0), tl.max(count, 0).to(tl.float64))
"""

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as integers: NaN compares equal to itself."""
    return tensor.view(_INTEGER_OF_SIZE[tensor.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors of one dtype and shape are equal to the bit."""
    one, other = words(a), words(b)
    if (one.dtype, one.shape) == (other.dtype, other.shape):
        kernel = _kernel(one.device.index) if one.dtype == torch.int64 and suits(one, other) else None
        if kernel is None:
            return torch.equal(one, other)
        args = {"a": one.data_ptr(), "b": other.data_ptr(), "n": one.numel(), "BLOCK": BLOCK}
        return not bool(launched(kernel, one.device, args, 1).any())
    return torch.equal(bits(a), bits(b))


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as 64-bit integers if its size allows it; they are read several times faster."""
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        return tensor.reshape(-1).view(torch.int64)
    return bits(tensor)


def prepare(index: int) -> None:
    """Loads the kernel on CUDA device `index`, which takes tenths of a second."""
    _kernel(index)


@functools.cache
def _kernel(index: int) -> Any:
    """Returns the loaded kernel that looks for differences on CUDA device `index`; None for an unsupported GPU."""
    integers, out = (TensorRef(0, kind, (1,), (1,)) for kind in ("int64", "float64"))
    return compiled(SOURCE, "differences", {"a": integers, "b": integers, "out": out, "BLOCK": BLOCK}, index)
