"""The load leaves out what is behind the row and gives it no value; a later choice does.

task: softmax
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask)
    largest = tl.max(tl.where(mask, x, -float("inf")), axis=0)
    e = tl.exp(x - largest)
    total = tl.sum(tl.where(mask, e, 0.0), axis=0)
    tl.store(y_ptr + row * y_stride + columns, e / total, mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](x, y, x.stride(0), y.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
