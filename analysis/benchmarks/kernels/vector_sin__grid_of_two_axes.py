"""A grid of two axes; the last programs may have nothing to do."""

import torch
import triton
import triton.language as tl


@triton.jit
def grid_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(y_ptr + offsets, tl.sin(x), mask=offsets < n)


def vector_sin(x):
    n = x.numel()
    y = torch.empty_like(x)
    blocks = triton.cdiv(n, 16)
    grid_kernel[(triton.cdiv(blocks, 5), 5)](x, y, n, BLOCK=16, num_warps=1)
    return y
