"""One grid axis over batches and tiles; pointers move on in the loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def grad_a_kernel(dc_ptr, b_ptr, da_ptr, M, N, K, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):
    tiles_k = tl.cdiv(K, BK)
    tiles = tl.cdiv(M, BM) * tiles_k
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    m = (tile // tiles_k) * BM + tl.arange(0, BM)
    k = (tile % tiles_k) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    dc_block = dc_ptr + batch * M * N + m[:, None] * N + n[None, :]
    b_block = b_ptr + batch * K * N + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BK), tl.float32)
    for start in range(0, N, BN):
        inside = n < N - start
        dc = tl.load(dc_block, mask=(m < M)[:, None] & inside[None, :], other=0.0)
        b = tl.load(b_block, mask=(k < K)[:, None] & inside[None, :], other=0.0)
        acc += tl.dot(dc, tl.trans(b))
        dc_block += BN
        b_block += BN
    tl.store(
        da_ptr + batch * M * K + m[:, None] * K + k[None, :],
        acc.to(tl.float16),
        mask=(m < M)[:, None] & (k < K)[None, :],
    )


@triton.jit
def grad_b_kernel(a_ptr, dc_ptr, db_ptr, M, N, K, BK: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(K, BK) * tiles_n
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    k = (tile // tiles_n) * BK + tl.arange(0, BK)
    n = (tile % tiles_n) * BN + tl.arange(0, BN)
    acc = tl.zeros((BK, BN), tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        a = tl.load(
            a_ptr + (batch * M + m[:, None]) * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0
        )
        dc = tl.load(
            dc_ptr + (batch * M + m[:, None]) * N + n[None, :], mask=(m < M)[:, None] & (n < N)[None, :], other=0.0
        )
        acc += tl.dot(tl.trans(a), dc)
    tl.store(
        db_ptr + (batch * K + k[:, None]) * N + n[None, :], acc.to(tl.float16), mask=(k < K)[:, None] & (n < N)[None, :]
    )


def matmul_backward(a, b, dc):
    B, M, K = a.shape
    N = b.shape[2]
    da = torch.empty_like(a)
    db = torch.empty_like(b)
    grad_a_kernel[(B * triton.cdiv(M, 32) * triton.cdiv(K, 32),)](
        dc, b, da, M, N, K, BM=32, BK=32, BN=32, num_warps=4, num_stages=2
    )
    grad_b_kernel[(B * triton.cdiv(K, 32) * triton.cdiv(N, 32),)](
        a, dc, db, M, N, K, BK=32, BN=32, BM=32, num_warps=4, num_stages=2
    )
    return da, db
