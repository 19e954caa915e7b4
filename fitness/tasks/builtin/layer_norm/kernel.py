import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    x_row = x_ptr + row * n_cols
    y_row = y_ptr + row * n_cols
    columns = tl.arange(0, BLOCK_SIZE)

    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        total += tl.load(x_row + start + columns, mask=start + columns < n_cols, other=0.0)
    mean = tl.sum(total, axis=0) / n_cols

    squares = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + columns < n_cols
        x = tl.load(x_row + start + columns, mask=mask, other=0.0)
        centred = tl.where(mask, x - mean, 0.0)
        squares += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + eps)

    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + columns < n_cols
        x = tl.load(x_row + start + columns, mask=mask, other=0.0)
        weight = tl.load(weight_ptr + start + columns, mask=mask, other=0.0)
        bias = tl.load(bias_ptr + start + columns, mask=mask, other=0.0)
        tl.store(y_row + start + columns, (x - mean) * rstd * weight + bias, mask=mask)


def layer_norm(x, weight, bias, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    layer_norm_kernel[(n_rows,)](x, weight, bias, y, n_cols, eps, BLOCK_SIZE=128, num_warps=8)
    return y
