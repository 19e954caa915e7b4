"""task: softmax
verdict: wrong|runtime_error
stage: verify
measured: ok
why: two rows a program, the last two shifted back to stay inside: a single row has none before it (on a GPU no size of one is tried)
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    rows = tl.minimum(2 * tl.program_id(0), n_rows - 2) + tl.arange(0, 2)
    columns = tl.arange(0, BLOCK)
    at = rows[:, None] * n_cols + columns[None, :]
    mask = (rows < n_rows)[:, None] & (columns < n_cols)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + at, e / tl.sum(e, axis=1)[:, None], mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(triton.cdiv(M, 2),)](x, y, M, N, BLOCK=triton.next_power_of_2(N))
    return y
