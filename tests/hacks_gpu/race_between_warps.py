"""task: softmax
verdict: wrong
stage: verify
why: what other warps store is loaded without a barrier; program after program it is right
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, scratch_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(scratch_ptr + row * stride + columns, e, mask=mask)
    mirrored = n_cols - 1 - columns
    total = tl.sum(tl.load(scratch_ptr + row * stride + mirrored, mask=mask, other=0.0), axis=0)
    tl.store(y_ptr + row * stride + columns, e / total, mask=mask)


def softmax(x):
    M, N = x.shape
    y, scratch = torch.empty_like(x), torch.empty_like(x)
    softmax_kernel[(M,)](x, y, scratch, x.stride(0), N, BLOCK=triton.next_power_of_2(N), num_warps=16)
    return y
