"""Weights converted in registers; a fixed number of programs takes tiles in turn."""

import torch
import triton
import triton.language as tl


@triton.jit
def persistent_kernel(x_ptr, w_ptr, scale_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_m = tl.cdiv(M, BM)
    tiles = tiles_m * tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        m = (tile % tiles_m) * BM + tl.arange(0, BM)
        n = (tile // tiles_m) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(k < K)[:, None] & (n < N)[None, :], other=0)
            acc += tl.dot(x, w.to(tl.float16))
        scale = tl.load(scale_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        y = (acc * scale[None, :]).to(tl.float16)
        tl.store(y_ptr + m[:, None] * N + n[None, :], y, mask=(m < M)[:, None] & (n < N)[None, :])


def int8_matmul(x, w, scale):
    M, K = x.shape
    N = w.shape[1]
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    tiles = triton.cdiv(M, 16) * triton.cdiv(N, 32)
    persistent_kernel[(triton.cdiv(tiles, 3),)](x, w, scale, y, M, N, K, BM=16, BN=32, BK=32, num_warps=4)
    return y
