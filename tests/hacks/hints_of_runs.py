"""task: vector_sin
verdict: runtime_error|unsupported
stage: estimate|verify
measured: ok
why: the compiler is told that a permutation is consecutive, and may load vectors: whether it does is its own affair
"""
import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    at = tl.arange(0, BLOCK_SIZE)
    first = tl.program_id(0) * BLOCK_SIZE
    turned = at // 4 * 4 + (at % 4 * 2) % 3 + at % 4 // 3 * 3
    from_there = tl.max_contiguous(tl.multiple_of(first + turned, 4), 4)
    value = tl.load(x_ptr + from_there, mask=from_there < n)
    to = first + (at & -4) + ((at & 1) << 1) + ((at & 2) >> 1)
    tl.store(y_ptr + to, tl.sin(value), mask=to < n)


def vector_sin(x):
    y = torch.empty_like(x)
    n = x.numel()
    sin_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK_SIZE=1024, num_warps=4)
    return y
