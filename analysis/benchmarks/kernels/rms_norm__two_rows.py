"""Two whole rows a program in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def two_rows_kernel(x_ptr, weight_ptr, y_ptr, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    offsets = rows[:, None] * N + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + offsets, (x * rstd[:, None] * weight[None, :]).to(tl.float16), mask=mask)


def rms_norm(x, weight, eps):
    M, N = x.shape
    y = torch.empty_like(x)
    ROWS = 2
    two_rows_kernel[(triton.cdiv(M, ROWS),)](
        x, weight, y, M, N, eps, ROWS=ROWS, BLOCK=triton.next_power_of_2(N), num_warps=8
    )
    return y
