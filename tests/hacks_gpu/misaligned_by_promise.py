"""task: softmax
verdict: runtime_error
stage: verify
why: a row of 777 numbers is promised to start at a multiple of 16
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < tl.multiple_of(n_cols, 16)
    x = tl.load(x_ptr + row * tl.multiple_of(stride, 16) + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * tl.multiple_of(stride, 16) + columns, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
