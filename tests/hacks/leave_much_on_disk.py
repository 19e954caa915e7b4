"""
task: softmax
verdict: rejected
stage: gate
rule: import
why: leaves many files, each below the limit of one, and fails
"""

import os

import torch
import triton
import triton.language as tl

for number in range(100):
    file = os.open(f"file{number}", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(file, 0, 10 << 20)
raise ValueError("left")


@triton.jit
def softmax_kernel(x, y, stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    v = tl.load(x + row * stride + cols, mask=cols < n_cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * stride + cols, e / tl.sum(e, 0), mask=cols < n_cols)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](x, y, x.stride(0), n_cols, BLOCK_SIZE=triton.next_power_of_2(n_cols))
    return y
