"""The vector seen as a matrix of full rows and a tail, both views; two launches of one kernel.

task: vector_sin
"""

import torch
import triton
import triton.language as tl

COLUMNS = 32


@triton.jit
def rows_kernel(x_ptr, y_ptr, n_rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offsets = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (rows < n_rows)[:, None]
    tl.store(y_ptr + offsets, tl.sin(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.shape[0]
    full = n // COLUMNS
    if full > 0:
        body, out = x[: full * COLUMNS].view(full, COLUMNS), y[: full * COLUMNS].view(-1, COLUMNS)
        rows_kernel[(triton.cdiv(full, 4),)](body, out, full, COLUMNS=COLUMNS, ROWS=4, num_warps=1)
    tail = n - full * COLUMNS
    if tail > 0:
        rows_kernel[(triton.cdiv(tail, 8),)](x[n - tail :], y[n - tail :], tail, COLUMNS=1, ROWS=8, num_warps=1)
    return y
