"""A tile of two whole rows in registers; the last tile may be half empty."""

import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    offsets = rows[:, None] * N + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=-1e30)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + offsets, e / tl.sum(e, axis=1)[:, None], mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    ROWS = 2
    rows_kernel[(triton.cdiv(M, ROWS),)](x, y, M, N, ROWS=ROWS, BLOCK=triton.next_power_of_2(N), num_warps=8)
    return y
