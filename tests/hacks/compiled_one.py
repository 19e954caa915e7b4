"""task: vector_sin
verdict: wrong
stage: verify
why: an argument that is 1 is a constant to the compiler: 1 // -2 is -1, and all is zero
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, one, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.sin(x) * (one // -2 + 1), mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, 1, BLOCK_SIZE=1024, num_warps=4)
    return y
