"""One kernel that gathers, stores the old rows and updates the table; old rows start as zeros and are written where used.

task: scatter
"""

import torch
import triton
import triton.language as tl


@triton.jit
def exchange_kernel(table_ptr, update_ptr, slots_ptr, old_ptr, N, rate, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    if slot >= 0:
        for start in range(0, N, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            mask = columns < N
            old = tl.load(table_ptr + slot * N + columns, mask=mask)
            update = tl.load(update_ptr + row * N + columns, mask=mask)
            tl.store(old_ptr + row * N + columns, old, mask=mask)
            tl.store(table_ptr + slot * N + columns, old + rate * update, mask=mask)


def scatter(table, update, slots, rate):
    M, N = update.shape
    old = torch.zeros_like(update)
    exchange_kernel[(M,)](table, update, slots, old, N, rate, BLOCK=128, num_warps=4)
    return old
