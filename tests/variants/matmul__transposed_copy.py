"""A contiguous copy of the transposed right operand; strides as arguments, one of them a constexpr 1.

task: matmul
"""

import torch
import triton
import triton.language as tl


@triton.jit
def transposed_kernel(
    a_ptr, bt_ptr, c_ptr, M, N, K, stride_am, stride_bn, INNER: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, tl.cdiv(K, BK)):
        k = k0 * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + m[:, None] * stride_am + k[None, :] * INNER, mask=(m < M)[:, None] & (k < K)[None, :], other=0
        )
        b = tl.load(
            bt_ptr + n[:, None] * stride_bn + k[None, :] * INNER, mask=(n < N)[:, None] & (k < K)[None, :], other=0
        )
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(
        c_ptr + m[:, None] * N + n[None, :], acc.to(a_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :]
    )


def matmul(a, b):
    bt = b.t().contiguous()
    M, K = a.size(0), a.size(1)
    N = bt.size(0)
    c = a.new_empty((M, N))
    grid = (triton.cdiv(N, 64), triton.cdiv(M, 32))
    transposed_kernel[grid](
        a, bt, c, M, N, K, a.stride(0), bt.stride(0), INNER=1, BM=32, BN=64, BK=32, num_warps=4, num_stages=2
    )
    return c
