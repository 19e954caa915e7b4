import torch
import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_rows,
    n_columns,
    n_inner,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Computes a tile of y = x @ weight.T + bias."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, n_inner, BLOCK_K):
        of_x = start + tl.arange(0, BLOCK_K)[None, :]
        of_weight = start + tl.arange(0, BLOCK_K)[:, None]
        x = tl.load(x_ptr + rows * n_inner + of_x, mask=(rows < n_rows) & (of_x < n_inner), other=0.0)
        weight_mask = (of_weight < n_inner) & (columns < n_columns)
        weight = tl.load(weight_ptr + columns * n_inner + of_weight, mask=weight_mask, other=0.0)
        total += tl.dot(x, weight, input_precision="ieee")
    total += tl.load(bias_ptr + columns, mask=columns < n_columns, other=0.0)
    tl.store(y_ptr + rows * n_columns + columns, total, mask=(rows < n_rows) & (columns < n_columns))


def linear(x, weight, bias):
    n_rows, n_inner = x.shape
    n_columns = weight.shape[0]
    y = torch.empty((n_rows, n_columns), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_rows, 64), triton.cdiv(n_columns, 64))
    linear_kernel[grid](x, weight, bias, y, n_rows, n_columns, n_inner, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    return y
