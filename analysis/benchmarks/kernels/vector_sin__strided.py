"""A fixed number of programs that step over the vector."""

import torch
import triton
import triton.language as tl


@triton.jit
def strided_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
        tl.store(y_ptr + offsets, tl.sin(x), mask=mask)


def vector_sin(x):
    n = x.numel()
    y = torch.empty_like(x)
    programs = 2 if n < 4096 else 1056
    strided_kernel[(programs,)](x, y, n, BLOCK=32 if n < 4096 else 1024, num_warps=4)
    return y
