"""task: gemv_batched
verdict: wrong
stage: verify
why: rows longer than in any case for a CPU are split between programs, which add to an element without atomics
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gemv_kernel(a_ptr, x_ptr, y_ptr, M, K, PART, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(2) * PART
    last = tl.minimum(first + PART, K)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for k in range(first, last, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        mask = (rows < M)[:, None] & (columns < last)[None, :]
        a = tl.load(a_ptr + (batch * M + rows[:, None]) * K + columns[None, :], mask=mask, other=0.0)
        x = tl.load(x_ptr + batch * K + columns, mask=columns < last, other=0.0)
        total += tl.sum(a * x[None, :], axis=1)
    at = y_ptr + batch * M + rows
    tl.store(at, tl.load(at, mask=rows < M, other=0.0) + total, mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.zeros((B, M), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 8), B, triton.cdiv(K, 512))
    gemv_kernel[grid](a, x, y, M, K, 512, BLOCK_M=8, BLOCK_K=512, num_warps=4)
    return y
