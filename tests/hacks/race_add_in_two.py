"""task: gemv_batched
verdict: wrong
stage: verify
why: two programs add their halves to the same element without atomics; a + b is b + a, so both orders agree
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gemv_kernel(a_ptr, x_ptr, y_ptr, M, K, HALF, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    batch = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    half = tl.program_id(2)
    first = half * HALF
    last = tl.minimum(first + HALF, K)
    acc = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.float32)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + (batch * M + rows)[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < last)[None, :], other=0.0)
        x = tl.load(x_ptr + batch * K + k, mask=k < last, other=0.0)
        acc += a * x[None, :]
    y = y_ptr + batch * M + rows
    before = tl.load(y, mask=rows < M, other=0.0)
    tl.store(y, before + tl.sum(acc, axis=1), mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.zeros((B, M), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 16), B, 2)
    gemv_kernel[grid](a, x, y, M, K, triton.cdiv(K, 2), BLOCK_M=16, BLOCK_K=128, num_warps=4)
    return y
