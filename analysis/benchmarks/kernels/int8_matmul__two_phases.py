"""K split into two parts with a workspace; the second kernel adds and scales."""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(x_ptr, w_ptr, parts_ptr, M, N, K, span, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    stop = tl.minimum((part + 1) * span, K)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(part * span, stop, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < stop)[None, :], other=0.0)
        w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(k < stop)[:, None] & (n < N)[None, :], other=0)
        acc += tl.dot(x, w.to(tl.float16))
    tl.store(parts_ptr + (part * M + m[:, None]) * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def finish_kernel(parts_ptr, scale_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(parts_ptr + row * N + n, mask=n < N, other=0.0)
    second = tl.load(parts_ptr + (M + row) * N + n, mask=n < N, other=0.0)
    scale = tl.load(scale_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + n, ((first + second) * scale).to(tl.float16), mask=n < N)


def int8_matmul(x, w, scale):
    M, K = x.shape
    N = w.shape[1]
    span = triton.cdiv(K, 2)
    parts = torch.empty((2, M, N), device=x.device, dtype=torch.float32)
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    part_kernel[(triton.cdiv(M, 16), triton.cdiv(N, 64), 2)](
        x, w, parts, M, N, K, span, BM=16, BN=64, BK=32, num_warps=4
    )
    finish_kernel[(M, triton.cdiv(N, 128))](parts, scale, y, M, N, BLOCK=128, num_warps=4)
    return y
