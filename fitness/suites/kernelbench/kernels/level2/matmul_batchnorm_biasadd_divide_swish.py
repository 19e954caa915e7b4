import torch
import triton
import triton.language as tl

LINEAR


@triton.jit
def statistics_kernel(x_ptr, mean_ptr, inverse_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The mean of each column of x (M by N), and one over its standard deviation."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        mask = (rows < M) & (columns < N)[None, :]
        sums += tl.load(x_ptr + rows.to(tl.int64) * N + columns[None, :], mask=mask, other=0.0)
    mean = tl.sum(sums, axis=0) / M
    squares = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        mask = (rows < M) & (columns < N)[None, :]
        x = tl.load(x_ptr + rows.to(tl.int64) * N + columns[None, :], mask=mask, other=0.0) - mean[None, :]
        squares += tl.where(mask, x * x, 0.0)
    tl.store(mean_ptr + columns, mean, mask=columns < N)
    tl.store(inverse_ptr + columns, 1.0 / tl.sqrt(tl.sum(squares, axis=0) / M + 1e-5), mask=columns < N)


@triton.jit
def norm_swish_kernel(
    x_ptr, mean_ptr, inverse_ptr, norm_weight_ptr, norm_bias_ptr, bias_ptr, y_ptr, N, BLOCK: tl.constexpr
):
    """Normalises a block of a row of x, adds the bias, divides by 1 and applies swish."""
    start_of_row = tl.program_id(0).to(tl.int64) * N
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    x = tl.load(x_ptr + start_of_row + columns, mask=mask) - tl.load(mean_ptr + columns, mask=mask)
    x = x * tl.load(inverse_ptr + columns, mask=mask) * tl.load(norm_weight_ptr + columns, mask=mask)
    x = x + tl.load(norm_bias_ptr + columns, mask=mask) + tl.load(bias_ptr)
    x = x / 1.0
    tl.store(y_ptr + start_of_row + columns, x * tl.sigmoid(x), mask=mask)


def entry(x, bias, matmul_weight, matmul_bias, bn_weight, bn_bias):
    product = linear(x, matmul_weight, matmul_bias)
    M, N = product.shape
    mean = torch.empty((N,), dtype=torch.float32, device=x.device)
    inverse = torch.empty((N,), dtype=torch.float32, device=x.device)
    y = torch.empty_like(product)
    statistics_kernel[(triton.cdiv(N, 32),)](product, mean, inverse, M, N, BLOCK_M=32, BLOCK_N=32)
    grid = (M, triton.cdiv(N, 1024))
    norm_swish_kernel[grid](product, mean, inverse, bn_weight, bn_bias, bias, y, N, BLOCK=1024)
    return y
