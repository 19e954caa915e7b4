"""task: softmax
verdict: out_of_memory
stage: record
why: two terabytes of scratch memory
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
    tl.store(scratch_ptr + row, tl.sum(e, axis=0))
    tl.store(y_ptr + row * stride + columns, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    M, N = x.shape
    y, scratch = torch.empty_like(x), torch.empty(1 << 39, device=x.device)
    softmax_kernel[(M,)](x, y, scratch, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
