import torch
import triton
import triton.language as tl


@triton.heuristics({"EVEN": lambda args: args["B"] > 0 and args["B"] % args["BLOCK_B"] == 0 and args["K"] > 0 and args["K"] % args["BLOCK_K"] == 0 and args["M"] > 0 and args["M"] % args["BLOCK_M"] == 0})
@triton.jit
def gemv_kernel(a_ptr, x_ptr, y_ptr, B, M, K, BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr):
    batches = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    if EVEN:
        a = tl.load(
            a_ptr + (batches[:, None, None] * M + rows[None, :, None]) * K + k[None, None, :],
        )
    else:
        a = tl.load(
            a_ptr + (batches[:, None, None] * M + rows[None, :, None]) * K + k[None, None, :],
            mask=(batches < B)[:, None, None] & (rows < M)[None, :, None] & (k < K)[None, None, :],
            other=0.0,
        )
    if EVEN:
        x = tl.load(
            x_ptr + batches[:, None] * K + k[None, :],
            eviction_policy="evict_first",
        )
    else:
        x = tl.load(
            x_ptr + batches[:, None] * K + k[None, :],
            mask=(batches < B)[:, None] & (k < K)[None, :],
            other=0.0, eviction_policy="evict_first",
        )
    y = tl.sum(a * x[:, None, :], axis=2)
    if EVEN:
        tl.store(
            y_ptr + batches[:, None] * M + rows[None, :],
            y,
        )
    else:
        tl.store(
            y_ptr + batches[:, None] * M + rows[None, :],
            y,
            mask=(batches < B)[:, None] & (rows < M)[None, :],
        )


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.empty((B, M), device=a.device, dtype=a.dtype)
    BLOCK_B, BLOCK_M = 1, 4
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(B, BLOCK_B))
    gemv_kernel[grid](
        a, x, y, B, M, K, BLOCK_B=BLOCK_B, BLOCK_M=BLOCK_M, BLOCK_K=triton.next_power_of_2(K), num_warps=4, maxnreg=64
    )
    return y
