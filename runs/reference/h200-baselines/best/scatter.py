import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(table_ptr, slots_ptr, old_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    slots = tl.load(slots_ptr + rows, mask=rows < M, other=-1)
    old = tl.load(table_ptr + slots[:, None] * N + columns[None, :], mask=inside & (slots >= 0)[:, None], other=0.0)
    tl.store(old_ptr + rows[:, None] * N + columns[None, :], old, mask=inside, eviction_policy="evict_last")


@triton.jit
def scatter_kernel(table_ptr, update_ptr, slots_ptr, old_ptr, M, N, rate, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    slots = tl.load(slots_ptr + rows, mask=rows < M, other=-1)
    offsets = rows[:, None] * N + columns[None, :]
    old = tl.load(old_ptr + offsets, mask=inside, other=0.0)
    update = tl.load(update_ptr + offsets, mask=inside, other=0.0)
    tl.store(
        table_ptr + slots[:, None] * N + columns[None, :], old + rate * update, mask=inside & (slots >= 0)[:, None]
    )


def scatter(table, update, slots, rate):
    M, N = update.shape
    old = torch.empty_like(update)
    BLOCK_M, BLOCK_N = 16, 64
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    gather_kernel[grid](table, slots, old, M, N, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4)
    scatter_kernel[grid](table, update, slots, old, M, N, rate, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=2, maxnreg=96)
    return old
