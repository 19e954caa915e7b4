"""task: scatter
verdict: wrong|rejected
stage: estimate|verify
why: the rows are gathered, the table is never updated
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(table_ptr, slots_ptr, old_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    slots = tl.load(slots_ptr + rows, mask=rows < M, other=-1)
    old = tl.load(table_ptr + slots[:, None] * N + columns[None, :], mask=inside & (slots >= 0)[:, None], other=0.0)
    tl.store(old_ptr + rows[:, None] * N + columns[None, :], old, mask=inside)


@triton.jit
def scatter_kernel(table_ptr, update_ptr, slots_ptr, old_ptr, M, N, rate, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    slots = tl.load(slots_ptr + rows, mask=rows < M, other=-1)
    offsets = rows[:, None] * N + columns[None, :]
    old = tl.load(old_ptr + offsets, mask=inside, other=0.0)
    update = tl.load(update_ptr + offsets, mask=inside, other=0.0)
    target = table_ptr + slots[:, None] * N + columns[None, :]
    tl.store(target, old + rate * update, mask=inside & (slots >= 0)[:, None])


def scatter(table, update, slots, rate):
    M, N = update.shape
    old = torch.empty_like(update)
    grid = (triton.cdiv(M, 16), triton.cdiv(N, 64))
    gather_kernel[grid](table, slots, old, M, N, BM=16, BN=64)
    scatter_kernel[(0,)](table, update, slots, old, M, N, rate, BM=16, BN=64)
    return old
