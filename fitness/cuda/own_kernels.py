"""Compiles and launches evo's own kernels, for operations that take PyTorch several passes over the memory.

They use the same path as the kernels of candidates, so the runner needs no C compiler for them.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from fitness.cuda.launcher import LoadedKernel

PROGRAMS_PER_MULTIPROCESSOR = 8  # enough loads under way to reach the bandwidth of the memory
ALIGNED = 16  # bytes


def compiled(source: str, name: str, args: Mapping[str, Any], index: int) -> LoadedKernel | None:
    """Returns the kernel `name`, loaded on CUDA device `index`; None for an unsupported GPU.

    args: tensors (aligned to ALIGNED) as TensorRef, constants.  A parameter `n` is added, which may be any count.
    """
    from fitness.cuda.gpus import LEAST
    from fitness.cuda.launcher import LoadedKernel
    from fitness.frontend import compile as compiler
    from fitness.frontend.target import sm_name

    capability = torch.cuda.get_device_capability(index)
    if capability[0] < LEAST:
        return None
    target = sm_name(capability)
    # A count beyond 32 bits that 16 does not divide: the kernel is not specialised for it.
    launch = {"kernel": name, "args": {**args, "n": 2**40 + 1}, "options": {"num_warps": 4}}
    with tempfile.TemporaryDirectory() as folder:
        payload = {"source": source, "constants": {}, "target": target, "launches": [launch]}
        build = compiler.job(payload, Path(folder))["builds"][0]
        return LoadedKernel((Path(folder) / build["cubin"]).read_bytes(), build)


def suits(*tensors: torch.Tensor) -> bool:
    """Returns whether the kernels apply: tensors on a GPU, contiguous, aligned."""
    return all(x.is_cuda and x.is_contiguous() and x.data_ptr() % ALIGNED == 0 for x in tensors)


def launched(
    kernel: LoadedKernel, device: torch.device, args: Mapping[str, Any], results: int
) -> Callable[[], np.ndarray]:
    """Enqueues a launch; the returned function waits for what it writes to `out`: (programs, results) float64."""
    out = torch.empty((programs_of(device), results), dtype=torch.float64, device=device)
    enqueue(kernel, device, (len(out), 1, 1), {**args, "out": out.data_ptr()})
    return lambda: out.numpy(force=True)  # NumPy sums so few numbers in a tenth of the time that PyTorch takes


@functools.cache
def programs_of(device: torch.device) -> int:
    """Returns how many programs fill the device."""
    return PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def enqueue(kernel: LoadedKernel, device: torch.device, grid: tuple[int, int, int], args: Mapping[str, Any]) -> None:
    """Enqueues one launch on the current stream."""
    scratch = [0] * len(kernel.scratch((1, 1, 1)))
    kernel.launch(grid, args, scratch, torch.cuda.current_stream(device).cuda_stream)
