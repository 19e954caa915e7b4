"""task: vector_sin
verdict: runtime_error|unsupported
stage: estimate|verify
why: Python enters the loop, scf.for does not: the machine code copies x
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, step, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    s = tl.sin(x)
    tl.store(y_ptr + offsets, x, mask=mask)
    for _ in range(1, 0, step):
        tl.store(y_ptr + offsets, s, mask=mask)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, -1, BLOCK_SIZE=1024, num_warps=4)
    return y
