"""task: softmax
verdict: rejected
stage: gate
rule: entry
why: the entry is a kernel
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + columns, e / tl.sum(e, axis=0), mask=mask)
