"""Computes how large a result is and how far another one lies from it, in one pass on a GPU.

Most of the time of verification goes here.  PyTorch needs six passes over outputs of hundreds of megabytes for what
`norms` gives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fitness.cuda.own_kernels import compiled, launched, suits
from fitness.frontend.plan import TensorRef

BLOCK = 1024
DTYPES = ("float16", "bfloat16", "float32", "float64")

SOURCE = """import triton
import triton.language as tl

@triton.jit
def norms(exact, other, out, n, BLOCK: tl.constexpr):
    largest = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    error = tl.zeros([BLOCK], tl.float64)
    error_squares = tl.zeros([BLOCK], tl.float64)
    strange = tl.zeros([BLOCK], tl.float64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in range(start, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        x = tl.load(exact + i, mask=i < n, other=0.0)
        d = tl.load(other + i, mask=i < n, other=0.0).to(tl.float64) - x
        largest = tl.maximum(largest, tl.abs(x))
        squares += x * x
        error = tl.maximum(error, tl.abs(d))
        error_squares += d * d
        finite = (tl.abs(x) < float("inf")) & (tl.abs(d) < float("inf"))
        strange += tl.where(finite, 0.0, 1.0)
    row = out + tl.program_id(0) * 5
    tl.store(row, tl.max(largest, 0))
    tl.store(row + 1, tl.sum(squares, 0))
    tl.store(row + 2, tl.max(error, 0))
    tl.store(row + 3, tl.sum(error_squares, 0))
    tl.store(row + 4, tl.sum(strange, 0))
"""


@dataclass(frozen=True)
class Norms:
    """Root mean square and largest magnitude of exact values and of errors; not finite if an element is not."""

    rms: float
    largest: float
    error_rms: float
    error_largest: float


def norms(exact: torch.Tensor, other: torch.Tensor) -> Norms:
    """Returns the norms of `exact` (float64, not empty) and of `other - exact` in float64 (floating, same shape)."""
    fused = _fused(exact, other)
    # Squares of very large and very small numbers leave the range of float64: those are scaled first, which takes time.
    if fused is not None and all(_squares_fit(size) for size in (fused.largest, fused.error_largest)):
        return fused
    rms, largest = _size(exact)
    error_rms, error_largest = _size((other.double() if other.dtype.itemsize == 1 else other) - exact)
    return Norms(rms, largest, error_rms, error_largest)


def _squares_fit(largest: float) -> bool:
    return largest == 0 or 1e-120 < largest < 1e120


def largest_magnitude(x: torch.Tensor) -> float:
    """Returns the largest magnitude; NaN or infinity if an element is."""
    x = x.float() if x.dtype.itemsize == 1 else x  # reductions do not know the 8-bit types
    return float(torch.linalg.vector_norm(x, torch.inf))


def _size(x: torch.Tensor) -> tuple[float, float]:
    """Returns (root mean square, largest magnitude) of a float64 tensor; not finite if an element is not."""
    largest = largest_magnitude(x)
    if not 0 < largest < math.inf:
        return largest, largest
    scale = 1.0 if _squares_fit(largest) else largest
    norm = float(torch.linalg.vector_norm(x if scale == 1.0 else x / scale))
    return scale * norm / math.sqrt(x.numel()), largest


# --- one pass --------------------------------------------------------------------------------------------------------


def _fused(exact: torch.Tensor, other: torch.Tensor) -> Norms | None:
    """Returns the norms from the kernel, None if the kernel does not apply."""
    name = str(other.dtype).removeprefix("torch.")
    if not suits(exact, other) or exact.dtype != torch.float64 or name not in DTYPES:
        return None
    kernel = _kernel(name, exact.device.index)
    if kernel is None:
        return None
    args = {"exact": exact.data_ptr(), "other": other.data_ptr(), "n": exact.numel(), "BLOCK": BLOCK}
    found = launched(kernel, exact.device, args, 5)()  # summed here, always in the same order
    if found[:, 4].any():
        return None  # not finite: the caller finds the place by other means
    largest, error_largest = found[:, 0:4:2].max(0).tolist()
    squares, error_squares = found[:, 1:4:2].sum(0).tolist()
    count = exact.numel()
    return Norms(math.sqrt(squares / count), largest, math.sqrt(error_squares / count), error_largest)


def prepare(dtypes: Iterable[str], index: int) -> None:
    """Loads the kernels for results of these dtypes on CUDA device `index`; takes tenths of a second each."""
    for dtype in set(dtypes) & set(DTYPES):
        _kernel(dtype, index)


@functools.cache
def _kernel(dtype: str, index: int) -> Any:
    """Returns the loaded kernel for `other` of `dtype` on CUDA device `index`; None for an unsupported GPU."""
    double, other = (TensorRef(0, kind, (1,), (1,)) for kind in ("float64", dtype))
    return compiled(SOURCE, "norms", {"exact": double, "other": other, "out": double, "BLOCK": BLOCK}, index)
