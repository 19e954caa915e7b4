import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, eps, BLOCK_SIZE: tl.constexpr, total_rows, BLOCK_ROWS: tl.constexpr):
    row = tl.minimum(tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), total_rows - 1).to(tl.int64)
    x_row = x_ptr + row * n_cols
    y_row = y_ptr + row * n_cols
    columns = tl.arange(0, BLOCK_SIZE)

    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    total += tl.load(x_row[:, None] + columns, mask=columns < n_cols, other=0.0)
    mean = tl.sum(total, axis=1) / n_cols

    squares = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    mask = columns < n_cols
    x = tl.load(x_row[:, None] + columns, mask=mask, other=0.0)
    centred = tl.where(mask, x - mean[:, None], 0.0)
    squares += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=1) / n_cols + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=mask, other=0.0)
    tl.store(y_row[:, None] + columns, (x - mean[:, None]) * rstd[:, None] * weight + bias, mask=mask)


def layer_norm(x, weight, bias, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    BLOCK_ROWS = 2
    layer_norm_kernel[(triton.cdiv(n_rows, BLOCK_ROWS),)](x, weight, bias, y, n_cols, eps, BLOCK_SIZE=triton.next_power_of_2(n_cols), num_warps=8, num_stages=2, total_rows=n_rows, BLOCK_ROWS=BLOCK_ROWS)
    return y
