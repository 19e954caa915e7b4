"""task: softmax
verdict: wrong
stage: verify
why: atomic maxima start from memory that was never set: the poison 0xA5A5A5A5 happens to be a very small number
"""

import torch
import triton
import triton.language as tl


@triton.jit
def max_kernel(x_ptr, largest_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, mask=columns < n_cols, other=-float("inf"))
    bits = tl.max(x, axis=0).to(tl.int32, bitcast=True)
    tl.atomic_max(largest_ptr + row, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))


@triton.jit
def softmax_kernel(x_ptr, largest_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    key = tl.load(largest_ptr + row)
    largest = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    e = tl.exp(x - largest)
    tl.store(y_ptr + row * stride + columns, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    M, N = x.shape
    y = torch.empty_like(x)
    largest = torch.empty((M,), device=x.device, dtype=torch.int32)
    max_kernel[(M, triton.cdiv(N, 128))](x, largest, x.stride(0), N, BLOCK=128, num_warps=4)
    softmax_kernel[(M,)](x, largest, y, x.stride(0), N, BLOCK=triton.next_power_of_2(N), num_warps=4)
    return y
