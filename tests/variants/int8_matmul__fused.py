"""Weights converted on the fly in one kernel, no workspace; the scales as a 2-D view.

task: int8_matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def fused_kernel(x_ptr, w_ptr, scale_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0)
        acc = tl.dot(x, w.to(x.dtype), acc)
    scale = tl.load(scale_ptr + n[None, :], mask=(n < N)[None, :], other=0.0)
    tl.store(
        y_ptr + m[:, None] * N + n[None, :], (acc * scale).to(tl.float16), mask=(m < M)[:, None] & (n < N)[None, :]
    )


def int8_matmul(x, w, scale):
    (M, K), (_, N) = x.shape, w.shape
    y = torch.empty(M, N, dtype=x.dtype, device=x.device)
    fused_kernel[(triton.cdiv(N, 64), triton.cdiv(M, 16))](
        x, w, scale.unsqueeze(0), y, M, N, K, BM=16, BN=64, BK=32, num_warps=4, num_stages=3
    )
    return y
