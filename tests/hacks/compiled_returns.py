"""task: vector_sin
verdict: unsupported
stage: estimate
measured: ok
why: as is what a function returns at several places (right on a GPU: n is positive, so the compiled function returns -2)
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sign(n):
    if n > 0:
        return -2
    else:
        return -3


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.sin(x) * (sign(n) // -2), mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
