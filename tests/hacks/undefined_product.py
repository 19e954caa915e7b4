"""task: gemv_batched
verdict: wrong
stage: estimate|verify
measured: ok
why: the sum takes in products of lanes that no load defines: right if they are zeros
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gemv_kernel(a_ptr, x_ptr, y_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    batch = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    a = tl.load(a_ptr + (batch * M + rows)[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :])
    x = tl.load(x_ptr + batch * K + k, mask=k < K)
    tl.store(y_ptr + batch * M + rows, tl.sum(a * x[None, :], axis=1), mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.empty((B, M), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 16), B)
    gemv_kernel[grid](a, x, y, M, K, BLOCK_M=16, BLOCK_K=triton.next_power_of_2(K), num_warps=4)
    return y
