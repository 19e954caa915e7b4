"""A grid of two programs along one axis at the smaller sizes, the second of which has a partial tile.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * across
    if tiles > 0:
        rows = tl.program_id(1) * BM + tl.arange(0, BM)
        columns = tl.program_id(0) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            a = tl.load(a_ptr + rows[:, None] * K + k, mask=(rows < M)[:, None] & (k < K), other=0.0)
            b = tl.load(b_ptr + k[:, None] * N + columns, mask=(k < K)[:, None] & (columns < N), other=0.0)
            acc = tl.dot(a, b, acc)
        tl.store(
            c_ptr + rows[:, None] * N + columns,
            acc.to(c_ptr.dtype.element_ty),
            mask=(rows < M)[:, None] & (columns < N),
        )


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    matmul_kernel[(triton.cdiv(N, 64), triton.cdiv(M, 64))](a, b, c, M, N, K, BM=64, BN=64, BK=64, num_warps=4)
    return c
