"""task: vector_sin
verdict: wrong
stage: verify
why: what a tensor chooses is a tensor to the compiler, whose division truncates
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.sin(x) * -((1 if n > 0 else 2) // -2), mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
