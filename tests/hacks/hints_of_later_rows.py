"""task: softmax
verdict: runtime_error|unsupported
stage: verify|estimate
measured: ok
why: the compiler is told that each of 2 rows begins at a multiple of 16; the first one of a program does (right on a GPU: the mask has no known alignment for odd N, so no access is wider than an element)
"""
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    first = tl.multiple_of(rows * N, 16)
    at = first[:, None] + columns[None, :]
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + at, e / tl.sum(e, axis=1)[:, None], mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(triton.cdiv(M, 2),)](x, y, M, N, ROWS=2, BLOCK=triton.next_power_of_2(N), num_warps=8)
    return y
