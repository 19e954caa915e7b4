"""task: matmul
verdict: rejected
stage: compile
why: a pipeline of fewer stages than none, for work that takes less than no time
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    start = 0
    while start < K:
        k = start + inner
        a = tl.load(a_ptr + rows[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + columns[None, :], mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
        start += BK
    c = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
    matmul_kernel[grid](a, b, c, M, N, K, BM=64, BN=64, BK=64, num_warps=4, num_stages=-1)
    return c
