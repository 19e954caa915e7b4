import torch
import triton
import triton.language as tl


@triton.jit
def grad_a_kernel(dc_ptr, b_ptr, da_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
    batch = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        dc = tl.load(
            dc_ptr + batch * M * N + m[:, None] * N + n[None, :],
            mask=(m < M)[:, None] & (n < N)[None, :],
            other=0.0,
        )
        b_t = tl.load(
            b_ptr + batch * K * N + k[None, :] * N + n[:, None],
            mask=(k < K)[None, :] & (n < N)[:, None],
            other=0.0,
        )
        acc += tl.dot(dc, b_t)
    tl.store(
        da_ptr + batch * M * K + m[:, None] * K + k[None, :],
        acc.to(da_ptr.dtype.element_ty),
        mask=(m < M)[:, None] & (k < K)[None, :],
    )


@triton.jit
def grad_b_kernel(a_ptr, dc_ptr, db_ptr, M, N, K, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    batch = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        a_t = tl.load(
            a_ptr + batch * M * K + m[None, :] * K + k[:, None],
            mask=(m < M)[None, :] & (k < K)[:, None],
            other=0.0,
        )
        dc = tl.load(
            dc_ptr + batch * M * N + m[:, None] * N + n[None, :],
            mask=(m < M)[:, None] & (n < N)[None, :],
            other=0.0,
        )
        acc += tl.dot(a_t, dc)
    tl.store(
        db_ptr + batch * K * N + k[:, None] * N + n[None, :],
        acc.to(db_ptr.dtype.element_ty),
        mask=(k < K)[:, None] & (n < N)[None, :],
    )


def matmul_backward(a, b, dc):
    B, M, K = a.shape
    N = b.shape[2]
    da = torch.empty((B, M, K), device=a.device, dtype=a.dtype)
    db = torch.empty((B, K, N), device=b.device, dtype=b.dtype)
    BLOCK = 128
    grad_a_kernel[(triton.cdiv(M, BLOCK), triton.cdiv(K, BLOCK), B)](
        dc, b, da, M, N, K, BLOCK_M=BLOCK, BLOCK_K=BLOCK, BLOCK_N=64, num_warps=4, num_stages=3
    )
    grad_b_kernel[(triton.cdiv(K, BLOCK), triton.cdiv(N, BLOCK), B)](
        a, dc, db, M, N, K, BLOCK_K=BLOCK, BLOCK_N=BLOCK, BLOCK_M=64, num_warps=4, num_stages=3
    )
    return da, db
