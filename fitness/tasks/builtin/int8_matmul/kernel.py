import torch
import triton
import triton.language as tl


@triton.jit
def dequantise_kernel(w_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(w_ptr + offsets, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def matmul_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0)
        w = tl.load(
            w_ptr + k[:, None] * N + columns[None, :], mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0
        )
        acc += tl.dot(x, w)
    scale = tl.load(scale_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(
        y_ptr + rows[:, None] * N + columns[None, :],
        (acc * scale[None, :]).to(y_ptr.dtype.element_ty),
        mask=(rows < M)[:, None] & (columns < N)[None, :],
    )


def int8_matmul(x, w, scale):
    M, K = x.shape
    N = w.shape[1]
    wide = torch.empty((K, N), device=w.device, dtype=x.dtype)
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    n = w.numel()
    BLOCK_SIZE = 256
    dequantise_kernel[(triton.cdiv(n, BLOCK_SIZE),)](w, wide, n, BLOCK_SIZE=BLOCK_SIZE, num_warps=8)
    BLOCK_M, BLOCK_N, BLOCK_K = 16, 32, 32
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    matmul_kernel[grid](
        x,
        wide,
        scale,
        y,
        M,
        N,
        K,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        num_warps=4,
        num_stages=1,
    )
    return y
