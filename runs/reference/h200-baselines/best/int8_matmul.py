import torch
import triton
import triton.language as tl


@triton.jit
def dequantise_kernel(w_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(w_ptr + offsets, mask=mask).to(out_ptr.dtype.element_ty), mask=mask)


@triton.heuristics({"EVEN": lambda args: args["K"] > 0 and args["K"] % args["BLOCK_K"] == 0 and args["M"] > 0 and args["M"] % args["BLOCK_M"] == 0 and args["N"] > 0 and args["N"] % args["BLOCK_N"] == 0})
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
    EVEN: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if EVEN:
            x = tl.load(x_ptr + rows[:, None] * K + k[None, :])
        else:
            x = tl.load(x_ptr + rows[:, None] * K + k[None, :], mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0)
        if EVEN:
            w = tl.load(
                w_ptr + k[:, None] * N + columns[None, :]
            )
        else:
            w = tl.load(
                w_ptr + k[:, None] * N + columns[None, :], mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0
            )
        acc += tl.dot(x, w)
    if EVEN:
        scale = tl.load(scale_ptr + columns).to(tl.float32)
    else:
        scale = tl.load(scale_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    if EVEN:
        tl.store(
            y_ptr + rows[:, None] * N + columns[None, :],
            (acc * scale[None, :]).to(y_ptr.dtype.element_ty),
        )
    else:
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
    BLOCK_SIZE = 1024
    dequantise_kernel[(triton.cdiv(n, BLOCK_SIZE),)](w, wide, n, BLOCK_SIZE=BLOCK_SIZE, num_warps=4)
    BLOCK_M, BLOCK_N, BLOCK_K = 16, 128, 32
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]))
    matmul_kernel[grid](
        x,
        wide,
        scale,
        y,
        M,
        N,
        K, BLOCK_M=32, BLOCK_N=128, BLOCK_K=64, num_warps=4, num_stages=4,
    )
    return y
