"""task: softmax
verdict: wrong
stage: estimate
why: instead of a mask, what lies behind the row is loaded and stored again: over what the next row's program may have written meanwhile, and into the guard zone
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n_cols
    x = tl.where(inside, tl.load(x_ptr + row * stride + columns), -float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    before = tl.load(y_ptr + row * stride + columns)
    tl.store(y_ptr + row * stride + columns, tl.where(inside, e / tl.sum(e, axis=0), before))


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N), num_warps=4)
    return y
