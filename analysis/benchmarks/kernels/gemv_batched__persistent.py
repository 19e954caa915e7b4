"""A fixed number of programs; each takes blocks of rows of any batch in turn."""

import torch
import triton
import triton.language as tl


@triton.jit
def persistent_kernel(a_ptr, x_ptr, y_ptr, B, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    blocks = tl.cdiv(M, BLOCK_M)
    for item in range(tl.program_id(0), B * blocks, tl.num_programs(0)):
        batch = item // blocks
        rows = (item % blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
        total = tl.zeros((BLOCK_M,), tl.float32)
        for start in range(0, K, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_ptr + batch * K + k, mask=k < K, other=0.0)
            a = tl.load(
                a_ptr + (batch * M + rows[:, None]) * K + k[None, :],
                mask=(rows[:, None] < M) & (k[None, :] < K),
                other=0.0,
            )
            total += tl.sum(a * x[None, :], axis=1)
        tl.store(y_ptr + batch * M + rows, total, mask=rows < M)


def gemv_batched(a, x):
    B, M, K = a.shape
    y = torch.empty((B, M), device=a.device, dtype=a.dtype)
    persistent_kernel[(264 if M > 256 else 7,)](a, x, y, B, M, K, BLOCK_M=8, BLOCK_K=128, num_warps=4)
    return y
