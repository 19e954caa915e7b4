"""Two halves of K added into a zeroed float32 buffer with atomics, then converted: two terms add up the same in any order.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def split_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    half = tl.cdiv(tl.cdiv(K, BK), 2) * BK
    start = tl.program_id(2) * half
    stop = tl.minimum(start + half, K)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(start, stop, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < stop), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < stop) & (n[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
    tl.atomic_add(c_ptr + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N), sem="relaxed")


@triton.jit
def convert_kernel(src_ptr, dst_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst_ptr + i, tl.load(src_ptr + i, mask=i < n).to(dst_ptr.dtype.element_ty), mask=i < n)


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    sums = torch.zeros((M, N), dtype=torch.float32, device=a.device)
    split_kernel[(triton.cdiv(M, 32), triton.cdiv(N, 32), 2)](a, b, sums, M, N, K, BM=32, BN=32, BK=16, num_warps=4)
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    convert_kernel[(triton.cdiv(M * N, 1024),)](sums, c, M * N, BLOCK=1024)
    return c
