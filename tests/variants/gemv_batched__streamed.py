"""The reduction streamed in tiles of K instead of whole rows; batches and rows in one grid dimension.

task: gemv_batched
"""

import torch
import triton
import triton.language as tl


@triton.jit
def streamed_kernel(a_ptr, x_ptr, y_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    tiles = tl.cdiv(M, BLOCK_M)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + batch * K + k, mask=k < K, other=0.0)
        a = tl.load(
            a_ptr + (batch * M + rows[:, None]) * K + k[None, :],
            mask=(rows < M)[:, None] & (k < K)[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        acc += a * x[None, :]
    tl.store(y_ptr + batch * M + rows, tl.sum(acc, axis=1), mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.empty((B, M), device=a.device, dtype=a.dtype)
    streamed_kernel[(B * triton.cdiv(M, 8),)](a, x, y, M, K, BLOCK_M=8, BLOCK_K=64, num_warps=4)
    return y
