"""Removes the priority that a kernel gave to lines of the L2 cache, so that later reads evict them.

Lines loaded or stored with `evict_last` outlive a read of twice the cache.  A kernel could keep its inputs warm from
one timed replay to the next (measured: docs/gpu.md, "Timing").
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from cuda.bindings import driver as cuda

from fitness.cuda.launcher import check

LINE = 128  # bytes
THREADS = 256
# One thread a line, one row of programs a row of the memory (PTX ISA, "applypriority").  As text: the driver compiles
# it for the GPU that is there.
_PTX = f"""
.version 7.4
.target sm_80
.address_size 64
.visible .entry demote(.param .u64 start, .param .u64 pitch, .param .u64 lines)
{{
    .reg .pred %done;
    .reg .b32 %r<5>;
    .reg .b64 %d<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r1, {THREADS}, %r2;
    cvt.u64.u32 %d1, %r3;
    ld.param.u64 %d2, [lines];
    setp.ge.u64 %done, %d1, %d2;
    @%done ret;
    mov.u32 %r4, %ctaid.y;
    cvt.u64.u32 %d3, %r4;
    ld.param.u64 %d4, [pitch];
    ld.param.u64 %d5, [start];
    mad.lo.u64 %d6, %d3, %d4, %d5;
    mad.lo.u64 %d7, %d1, {LINE}, %d6;
    applypriority.global.L2::evict_normal [%d7], {LINE};
    ret;
}}
"""


def demote(rows: torch.Tensor) -> None:
    """Enqueues: every line of the rows, (number, bytes) and aligned to lines, gets normal priority.

    If a last line extends beyond a row's end, that memory must be of the same allocation.  The host's memory has no
    such lines.  Raises DeviceError.
    """
    if not rows.is_cuda:
        return
    lines = -(-rows.shape[1] // LINE)
    values = rows.data_ptr(), rows.stride(0), lines
    stream = torch.cuda.current_stream().cuda_stream
    grid = -(-lines // THREADS), rows.shape[0], 1
    arguments = values, (ctypes.c_uint64,) * 3
    check(cuda.cuLaunchKernel(_function(), *grid, THREADS, 1, 1, 0, stream, arguments, 0), "demoting cached lines")


def demote_all() -> None:
    """Waits, then gives normal priority to everything in the cache.  Raises DeviceError."""
    torch.cuda.current_stream().synchronize()
    check(cuda.cuCtxResetPersistingL2Cache(), "demoting all cached lines")


@functools.cache
def _function() -> Any:
    """Returns the loaded kernel.  It is loaded once: a process has one GPU."""
    module = check(cuda.cuModuleLoadData(_PTX.encode() + b"\0"), "loading the kernel that demotes cached lines")
    return check(cuda.cuModuleGetFunction(module, b"demote"), "finding the kernel that demotes cached lines")
