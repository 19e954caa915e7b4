"""Blocks of rows over whole widths; one kernel gathers and updates."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_blocks_kernel(table_ptr, update_ptr, slots_ptr, old_ptr, M, N, rate, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slots = tl.load(slots_ptr + rows, mask=rows < M, other=-1)
    used = (slots >= 0)[:, None]
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        offsets = rows[:, None] * N + columns[None, :]
        places = slots[:, None] * N + columns[None, :]
        old = tl.load(table_ptr + places, mask=inside & used, other=0.0)
        update = tl.load(update_ptr + offsets, mask=inside, other=0.0)
        tl.store(old_ptr + offsets, old, mask=inside)
        tl.store(table_ptr + places, old + rate * update, mask=inside & used)


def scatter(table, update, slots, rate):
    M, N = update.shape
    old = torch.empty_like(update)
    row_blocks_kernel[(triton.cdiv(M, 4),)](table, update, slots, old, M, N, rate, ROWS=4, BLOCK=64, num_warps=4)
    return old
