"""task: matmul
verdict: wrong
stage: estimate|verify
why: the mask is that of the first turn in all of them: at the sizes for a CPU the loop over K takes one turn
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + rows[:, None] * K + k[None, :]
    b_at = b_ptr + k[:, None] * N + columns[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        left = k < K
        a = tl.load(a_at, mask=(rows < M)[:, None] & left[None, :], other=0.0)
        b = tl.load(b_at, mask=left[:, None] & (columns < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
        a_at += BLOCK_K
        b_at += BLOCK_K * N
    c = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(
        c,
        acc.to(c_ptr.dtype.element_ty),
        mask=(rows < M)[:, None] & (columns < N)[None, :],
    )


def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
    matmul_kernel[grid](
        a, b, c, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=128, num_warps=4
    )
    return c
