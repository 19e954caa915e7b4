"""Tensors as the bits they are made of: NaN equals itself, and 0.0 is not -0.0."""

from __future__ import annotations

import torch

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN compares equal to itself."""
    return tensor.view(_INTEGER_OF_SIZE[tensor.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape are equal to the bit."""
    one, other = words(a), words(b)
    if (one.dtype, one.shape) == (other.dtype, other.shape):
        return torch.equal(one, other)
    return torch.equal(bits(a), bits(b))


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as 64-bit integers where it is made of such, which are read several times faster."""
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        return tensor.reshape(-1).view(torch.int64)
    return bits(tensor)
