"""Three kernels with workspaces: moments of parts of rows, their combination (Chan's formula), then the scaling.

task: layer_norm
"""

import torch
import triton
import triton.language as tl


@triton.jit
def moments_kernel(x_ptr, mean_ptr, square_ptr, N, PARTS, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    count = tl.minimum(N - part * BLOCK, BLOCK)
    x = tl.load(x_ptr + row * N + columns, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / count
    centred = tl.where(mask, x - mean, 0.0)
    tl.store(mean_ptr + row * PARTS + part, mean)
    tl.store(square_ptr + row * PARTS + part, tl.sum(centred * centred, axis=0))


@triton.jit
def combine_kernel(mean_ptr, square_ptr, row_mean_ptr, rstd_ptr, N, PARTS, eps, BLOCK: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0)
    parts = tl.arange(0, P)
    mask = parts < PARTS
    count = tl.where(mask, tl.minimum(N - parts * BLOCK, BLOCK), 0).to(tl.float32)
    means = tl.load(mean_ptr + row * PARTS + parts, mask=mask, other=0.0)
    squares = tl.load(square_ptr + row * PARTS + parts, mask=mask, other=0.0)
    mean = tl.sum(means * count, axis=0) / N
    square = tl.sum(squares + count * (means - mean) * (means - mean), axis=0)
    tl.store(row_mean_ptr + row, mean)
    tl.store(rstd_ptr + row, 1.0 / tl.sqrt(square / N + eps))


@triton.jit
def scale_kernel(x_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    x = tl.load(x_ptr + row * N + columns, mask=mask)
    weight = tl.load(weight_ptr + columns, mask=mask)
    bias = tl.load(bias_ptr + columns, mask=mask)
    y = (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row) * weight + bias
    tl.store(y_ptr + row * N + columns, y, mask=mask)


def layer_norm(x, weight, bias, eps):
    M, N = x.shape
    block = 128
    parts = triton.cdiv(N, block)
    options = {"device": x.device, "dtype": torch.float32}
    means, squares = torch.empty((M, parts), **options), torch.empty((M, parts), **options)
    mean, rstd = torch.empty(M, **options), torch.empty(M, **options)
    y = torch.empty_like(x)
    moments_kernel[(M, parts)](x, means, squares, N, parts, BLOCK=block, num_warps=4)
    combine_kernel[(M,)](
        means, squares, mean, rstd, N, parts, eps, BLOCK=block, P=triton.next_power_of_2(parts), num_warps=1
    )
    scale_kernel[(M, parts)](x, weight, bias, mean, rstd, y, N, BLOCK=block, num_warps=4)
    return y
