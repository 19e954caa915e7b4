"""task: softmax
verdict: wrong
stage: verify
why: sums start at whatever the memory holds
"""

import torch
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, largest_ptr, sums_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf"))
    tl.atomic_add(sums_ptr + row, tl.sum(tl.exp(x - tl.load(largest_ptr + row)), axis=0))


@triton.jit
def largest_kernel(x_ptr, largest_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf"))
    tl.store(largest_ptr + row, tl.max(x, axis=0))


@triton.jit
def divide_kernel(x_ptr, y_ptr, largest_ptr, sums_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.load(largest_ptr + row))
    tl.store(y_ptr + row * stride + columns, e / tl.load(sums_ptr + row), mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    largest, sums = torch.empty(M, device=x.device), torch.empty(M, device=x.device)
    whole = triton.next_power_of_2(N)
    largest_kernel[(M,)](x, largest, x.stride(0), N, BLOCK=whole)
    sums_kernel[(M, triton.cdiv(N, 32))](x, largest, sums, x.stride(0), N, BLOCK=32, num_warps=1)
    divide_kernel[(M,)](x, y, largest, sums, x.stride(0), N, BLOCK=whole)
    return y
