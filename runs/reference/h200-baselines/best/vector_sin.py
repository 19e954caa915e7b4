import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, eviction_policy="evict_first")
    tl.store(y_ptr + offsets, tl.sin(x), mask=mask, cache_modifier=".wt")


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)](x, y, n, BLOCK_SIZE=1024, num_warps=2, num_stages=3)
    return y
