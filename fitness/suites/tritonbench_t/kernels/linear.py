import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def linear_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    y_ptr,
    M,
    N,
    K,
    a_batch,
    a_row,
    a_column,
    b_batch,
    b_row,
    b_column,
    c_row,
    c_column,
    s,
    t,
    HAS_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        of_a = start + tl.arange(0, BLOCK_K)[None, :]
        of_b = start + tl.arange(0, BLOCK_K)[:, None]
        a_places = batch * a_batch + rows * a_row + of_a.to(tl.int64) * a_column
        b_places = batch * b_batch + of_b.to(tl.int64) * b_row + columns * b_column
        a = tl.load(a_ptr + a_places, mask=(rows < M) & (of_a < K), other=0.0)
        b = tl.load(b_ptr + b_places, mask=(of_b < K) & (columns < N), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    mask = (rows < M) & (columns < N)
    if HAS_C:
        c = tl.load(c_ptr + rows * c_row + columns * c_column, mask=mask, other=0.0)
        x = TERM
    else:
        x = total
    tl.store(y_ptr + (batch * M + rows) * N + columns, VALUE, mask=mask)


def entry(a, b, c=None, s=1.0, t=1.0):
    """Of batches of matrices; `c` is added to the result."""
    batch, M, K = a.shape
    N = b.shape[2]
    y = torch.empty((batch, M, N), dtype=a.dtype, device=a.device)
    has_c = c is not None
    c = c.expand(M, N) if has_c else y.view(batch * M, N)
    grid = (triton.cdiv(N, 64), triton.cdiv(M, 64), batch)
    linear_kernel[grid](
        a,
        b,
        c,
        y,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        *c.stride(),
        s,
        t,
        HAS_C=has_c,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
    )
    return y
