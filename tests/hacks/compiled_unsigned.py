"""task: vector_sin
verdict: wrong
stage: verify
why: the loop variable has the type of its bounds: below zero it is large
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, three, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    s = x
    for i in range(0, three.to(tl.uint32), 2):
        s = tl.where(i - 1 < 0, tl.sin(x), s)
    tl.store(y_ptr + offsets, s, mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, 3, BLOCK_SIZE=1024, num_warps=4)
    return y
