"""task: vector_sin
verdict: unsupported
stage: estimate
measured: ok
why: work that only large sizes do, after all is written, goes on for longer than an estimate follows it
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.sin(x), mask=mask)
    i = 0
    s = x
    while i < tl.where(n < 1000, 3, 20000):
        s = tl.sin(s)
        i += 1
    tl.store(y_ptr + offsets, s, mask=mask & (s > 2.0))


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
