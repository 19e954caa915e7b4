"""Two chunks a program, one after the other."""

import torch
import triton
import triton.language as tl


@triton.jit
def two_chunks_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * 2 * BLOCK + tl.arange(0, BLOCK)
    second = first + BLOCK
    x = tl.load(x_ptr + first, mask=first < n, other=0.0)
    z = tl.load(x_ptr + second, mask=second < n, other=0.0)
    tl.store(y_ptr + first, tl.sin(x), mask=first < n)
    tl.store(y_ptr + second, tl.sin(z), mask=second < n)


def vector_sin(x):
    n = x.numel()
    y = torch.empty_like(x)
    BLOCK = 64
    two_chunks_kernel[(triton.cdiv(n, 2 * BLOCK),)](x, y, n, BLOCK=BLOCK, num_warps=2)
    return y
