"""task: vector_sin
verdict: wrong
stage: verify
why: the device combines elements in an order of its own
"""
import torch
import triton
import triton.language as tl


@triton.jit
def compose(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    at = tl.arange(0, BLOCK_SIZE)
    _a, b = tl.reduce((tl.where(at % 7 == 0, -1.0, 1.0), tl.full((BLOCK_SIZE,), 1.0, tl.float32)), 0, compose)
    tl.store(y_ptr + offsets, tl.sin(x) * (b / 2.0), mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
