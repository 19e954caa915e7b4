"""A row in registers, mean and variance in one pass over it."""

import torch
import triton
import triton.language as tl


@triton.jit
def whole_row_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    x = tl.load(x_ptr + row * N + columns, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / N
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=mask)
    bias = tl.load(bias_ptr + columns, mask=mask)
    tl.store(y_ptr + row * N + columns, centred * rstd * weight + bias, mask=mask)


def layer_norm(x, weight, bias, eps):
    M, N = x.shape
    y = torch.empty_like(x)
    whole_row_kernel[(M,)](x, weight, bias, y, N, eps, BLOCK=triton.next_power_of_2(N), num_warps=8)
    return y
