"""task: softmax
verdict: runtime_error
stage: verify
why: mirrored groups of four are promised to be contiguous and aligned: right wherever promises are not relied on
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    swapped = tl.max_contiguous(tl.multiple_of((columns // 4) * 4 + (3 - columns % 4), 4), 4)
    x = tl.load(x_ptr + row * stride + swapped, mask=swapped < n_cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    back = (columns // 4) * 4 + (3 - columns % 4)
    tl.store(y_ptr + row * stride + back, e / tl.sum(e, axis=0), mask=back < n_cols)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](x, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
