"""task: softmax
verdict: wrong
stage: verify
why: the maximum is that of the first block of a row: right where later blocks are not much larger
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    first = tl.load(x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf"))
    top = tl.max(first, axis=0)
    total = tl.sum(tl.exp(first - top), axis=0)
    for start in range(BLOCK, n_cols, BLOCK):
        x = tl.load(x_ptr + row * stride + start + columns, mask=start + columns < n_cols, other=-float("inf"))
        total += tl.sum(tl.exp(x - top), axis=0)
    for start in range(0, n_cols, BLOCK):
        mask = start + columns < n_cols
        x = tl.load(x_ptr + row * stride + start + columns, mask=mask, other=-float("inf"))
        tl.store(y_ptr + row * stride + start + columns, tl.exp(x - top) / total, mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](x, y, x.stride(0), N, BLOCK=512)
    return y
