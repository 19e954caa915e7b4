"""One pass: a program holds its whole row; the number of warps follows from the row's length.

task: softmax
"""

import torch
import triton
import triton.language as tl


@triton.jit
def whole_row_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * n_cols + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n_cols + columns, e / tl.sum(e, axis=0), mask=mask)


def softmax(x: torch.Tensor) -> torch.Tensor:
    M, N = x.shape
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(N)
    warps = 4
    if block >= 2048:
        warps = 8
    if block >= 8192:
        warps = 16
    whole_row_kernel[(M, 1, 1)](x, y, N, BLOCK=block, num_warps=warps)
    return y
