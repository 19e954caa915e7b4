"""task: softmax
verdict: runtime_error
stage: verify
why: the compiler is told that rows begin at multiples of 16, and masks change every 4 columns, where they do not
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sm(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    first = tl.multiple_of(row * N, 16)
    mask = tl.max_constancy(c < N, 4)
    x = tl.load(x_ptr + (first + c), mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + (first + c), e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    sm[(M,)](x, y, N, BLOCK=triton.next_power_of_2(N), num_warps=8)
    return y
