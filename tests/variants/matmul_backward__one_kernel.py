"""One kernel for both gradients, called with the strides of transposed views; batches looped over on the host.

task: matmul_backward
"""

import torch
import triton
import triton.language as tl


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * am + k[None, :] * ak, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        b = tl.load(b_ptr + k[:, None] * bk + n[None, :] * bn, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc += tl.dot(a, b)
    tl.store(c_ptr + m[:, None] * cm + n[None, :] * cn, acc.to(tl.float16), mask=(m < M)[:, None] & (n < N)[None, :])


def product(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    product_kernel[grid](
        a, b, out, M, N, K, *a.stride(), *b.stride(), *out.stride(), BM=32, BN=32, BK=32, num_warps=4, num_stages=2
    )


def matmul_backward(a, b, dc):
    da, db = torch.empty_like(a), torch.empty_like(b)
    for i in range(a.shape[0]):
        product(dc[i], b[i].transpose(0, 1), da[i])
        product(a[i].t(), dc[i], db[i])
    return da, db
