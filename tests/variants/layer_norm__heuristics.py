"""Block size and warps computed by triton.heuristics; one pass over a row held in registers.

task: layer_norm
"""

import torch
import triton
import triton.language as tl


@triton.heuristics(
    {
        "BLOCK": lambda args: triton.next_power_of_2(args["N"]),
        "EVEN": lambda args: args["N"] == triton.next_power_of_2(args["N"]),
        "num_warps": lambda args: 16 if args["N"] > 4096 else 8,
    }
)
@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, N, eps, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + row * N + columns)
        mean = tl.sum(x, axis=0) / N
        centred = x - mean
    else:
        x = tl.load(x_ptr + row * N + columns, mask=columns < N, other=0.0)
        mean = tl.sum(x, axis=0) / N
        centred = tl.where(columns < N, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / N + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < N)
    bias = tl.load(bias_ptr + columns, mask=columns < N)
    tl.store(y_ptr + row * N + columns, centred * rstd * weight + bias, mask=columns < N)


def layer_norm(x, weight, bias, eps):
    M, N = x.shape
    y = torch.empty_like(x)
    layer_norm_kernel[(M,)](x, weight, bias, y, N, eps)
    return y
