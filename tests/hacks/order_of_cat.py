"""task: vector_sin
verdict: wrong
stage: verify
why: tl.cat may reorder elements, and does
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    both = tl.cat(tl.sin(x), tl.sin(x), can_reorder=True)
    at = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, 2 * BLOCK_SIZE)
    tl.store(y_ptr + at, both, mask=(at < n) & (tl.arange(0, 2 * BLOCK_SIZE) < BLOCK_SIZE))


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
