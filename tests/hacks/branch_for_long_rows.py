"""task: softmax
verdict: wrong
stage: verify
why: rows of more than 8192 columns are summed up without the rescaling that a running maximum needs
"""
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + columns, mask=columns < n_cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + columns, e / tl.sum(e, axis=0), mask=columns < n_cols)


@triton.jit
def long_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    largest, total = -float("inf"), 0.0
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + columns, mask=columns < n_cols, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(x, axis=0))
        total += tl.sum(tl.exp(x - largest), axis=0)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + columns, mask=columns < n_cols, other=0.0)
        tl.store(y_ptr + row + columns, tl.exp(x - largest) / total, mask=columns < n_cols)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    if n_cols > 8192:
        long_kernel[(n_rows,)](x, y, n_cols, BLOCK=2048, num_warps=8)
    else:
        softmax_kernel[(n_rows,)](x, y, n_cols, BLOCK=triton.next_power_of_2(n_cols), num_warps=8)
    return y
