"""task: softmax
verdict: wrong
stage: verify
why: a running sum that is not rescaled where the maximum grows: at the sizes for a CPU the loop takes one turn
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest, total = -float("inf"), 0.0
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf")
        )
        largest = tl.maximum(largest, tl.max(x, axis=0))
        total += tl.sum(tl.exp(x - largest), axis=0)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf")
        )
        tl.store(
            y_ptr + row * stride + columns,
            tl.exp(x - largest) / total,
            mask=columns < n_cols,
        )


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(M,)](
        x, y, x.stride(0), N, BLOCK=min(2048, triton.next_power_of_2(N))
    )
    return y
