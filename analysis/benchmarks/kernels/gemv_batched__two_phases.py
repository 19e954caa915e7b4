"""K split into parts with a workspace; the second kernel adds them."""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(a_ptr, x_ptr, parts_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    x = tl.load(x_ptr + batch * K + k, mask=k < K, other=0.0)
    a = tl.load(
        a_ptr + (batch * M + rows[:, None]) * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0
    )
    place = (batch * tl.num_programs(1) + tl.program_id(1)) * M + rows
    tl.store(parts_ptr + place, tl.sum(a * x[None, :], axis=1), mask=rows < M)


@triton.jit
def sum_kernel(parts_ptr, y_ptr, M, n_parts, BLOCK: tl.constexpr):
    batch = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(0, n_parts):
        total += tl.load(parts_ptr + (batch * n_parts + part) * M + rows, mask=rows < M, other=0.0)
    tl.store(y_ptr + batch * M + rows, total, mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    BLOCK_M, BLOCK_K = 16, 128
    n_parts = triton.cdiv(K, BLOCK_K)
    parts = torch.empty((B, n_parts, M), device=a.device, dtype=torch.float32)
    y = torch.empty((B, M), device=a.device, dtype=a.dtype)
    part_kernel[(triton.cdiv(M, BLOCK_M), n_parts, B)](a, x, parts, M, K, BLOCK_M=BLOCK_M, BLOCK_K=BLOCK_K, num_warps=4)
    sum_kernel[(triton.cdiv(M, 64), B)](parts, y, M, n_parts, BLOCK=64, num_warps=2)
    return y
