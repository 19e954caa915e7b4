"""One kernel for both gradients, called with transposed views and their strides; batches in the third grid dimension.

task: matmul_backward
"""

import torch
import triton
import triton.language as tl


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, ab, am, ak, bb, bk, bn, cb, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    a_ptr += batch * ab
    b_ptr += batch * bb
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * am + k[None, :] * ak, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(b_ptr + k[:, None] * bk + n[None, :] * bn, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
    c = c_ptr + batch * cb + m[:, None] * cm + n[None, :] * cn
    tl.store(c, acc.to(tl.float16), mask=(m < M)[:, None] & (n < N)[None, :])


def product(a, b, out):
    (B, M, K), N = a.shape, b.shape[2]
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32), B)
    product_kernel[grid](
        a, b, out, M, N, K, *a.stride(), *b.stride(), *out.stride(), BM=32, BN=32, BK=32, num_warps=4, num_stages=2
    )


def matmul_backward(a, b, dc):
    da, db = torch.empty_like(a), torch.empty_like(b)
    product(dc, b.transpose(1, 2), da)
    product(a.transpose(1, 2), dc, db)
    return da, db
