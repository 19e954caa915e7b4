"""How large a result is and how far another one lies from it, read in one pass on a GPU.

Verification is mostly this: PyTorch needs six passes over outputs of hundreds of megabytes for what `norms` gives.  The
kernel is compiled and launched as those of candidates are, so the runner needs no C compiler for it.
"""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fitness.plan import TensorRef

PROGRAMS_PER_MULTIPROCESSOR = 8  # enough loads under way to reach the bandwidth of the memory
BLOCK, ALIGNED = 1024, 16
DTYPES = ("float16", "bfloat16", "float32", "float64")

SOURCE = """import triton
import triton.language as tl

@triton.jit
def norms(exact, other, sums, n, BLOCK: tl.constexpr):
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
    row = sums + tl.program_id(0) * 5
    tl.store(row, tl.max(largest, 0))
    tl.store(row + 1, tl.sum(squares, 0))
    tl.store(row + 2, tl.max(error, 0))
    tl.store(row + 3, tl.sum(error_squares, 0))
    tl.store(row + 4, tl.sum(strange, 0))
"""


@dataclass(frozen=True)
class Norms:
    """Root mean square and largest magnitude of exact values and of errors; not finite where an element is not."""

    rms: float
    largest: float
    error_rms: float
    error_largest: float


def norms(exact: torch.Tensor, other: torch.Tensor) -> Norms:
    """Of `exact` (float64, not empty) and of `other - exact` in float64 (floating, same shape)."""
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
    """NaN or infinity where there is one."""
    x = x.float() if x.dtype.itemsize == 1 else x  # reductions do not know the 8-bit types
    return float(torch.linalg.vector_norm(x, torch.inf))


def _size(x: torch.Tensor) -> tuple[float, float]:
    """(root mean square, largest magnitude) of a float64 tensor; not finite where an element is not."""
    largest = largest_magnitude(x)
    if not 0 < largest < math.inf:
        return largest, largest
    scale = 1.0 if _squares_fit(largest) else largest
    norm = float(torch.linalg.vector_norm(x if scale == 1.0 else x / scale))
    return scale * norm / math.sqrt(x.numel()), largest


# --- one pass --------------------------------------------------------------------------------------------------------


def _fused(exact: torch.Tensor, other: torch.Tensor) -> Norms | None:
    """None where the kernel does not apply."""
    if not exact.is_cuda or exact.dtype != torch.float64:
        return None
    name = str(other.dtype).removeprefix("torch.")
    suits = all(x.is_contiguous() and x.data_ptr() % ALIGNED == 0 for x in (exact, other))
    kernel = _kernel(name, exact.device.index) if name in DTYPES and suits else None
    if kernel is None:
        return None
    programs = PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(exact.device).multi_processor_count
    sums = torch.empty((programs, 5), dtype=torch.float64, device=exact.device)
    args = {"exact": exact.data_ptr(), "other": other.data_ptr(), "sums": sums.data_ptr(), "n": exact.numel()}
    stream = torch.cuda.current_stream(exact.device).cuda_stream
    kernel.launch((programs, 1, 1), {**args, "BLOCK": BLOCK}, [0] * len(kernel.scratch((1, 1, 1))), stream)
    found = sums.cpu()  # summed here, always in the same order
    if float(found[:, 4].sum()):
        return None  # not finite, whose place is looked for by other means anyway
    largest, error_largest = found[:, 0:4:2].amax(0).tolist()
    squares, error_squares = found[:, 1:4:2].sum(0).tolist()
    count = exact.numel()
    return Norms(math.sqrt(squares / count), largest, math.sqrt(error_squares / count), error_largest)


@functools.cache
def _kernel(dtype: str, index: int) -> Any:
    """The loaded kernel for `other` of `dtype`, compiled for CUDA device `index`; None for a GPU that is no target."""
    from fitness import compile as compiler
    from fitness.launcher import Kernel
    from fitness.target import TARGETS

    target = "sm_{}{}".format(*torch.cuda.get_device_capability(index))
    if target not in TARGETS:
        return None
    tensors = {name: TensorRef(0, kind, (1,), (1,)) for name, kind in (("exact", "float64"), ("other", dtype))}
    # A count beyond 32 bits that 16 does not divide: the compiled kernel takes any.
    args = {**tensors, "sums": tensors["exact"], "n": 2**40 + 1, "BLOCK": BLOCK}
    launch = {"kernel": "norms", "args": args, "options": {"num_warps": 4}}
    with tempfile.TemporaryDirectory() as folder:
        payload = {"source": SOURCE, "constants": {}, "target": target, "launches": [launch]}
        build = compiler.job(payload, Path(folder))["builds"][0]
        return Kernel((Path(folder) / build["cubin"]).read_bytes(), build)
