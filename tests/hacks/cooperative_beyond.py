"""task: vector_sin
verdict: out_of_memory
stage: screen
why: all programs are to run at once, of which there are more than the device holds: CUDA refuses the launch
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


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4, launch_cooperative_grid=True)
    return y
