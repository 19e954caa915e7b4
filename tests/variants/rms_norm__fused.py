"""One kernel, helper functions with @triton.jit, eviction policies, a constexpr global.

task: rms_norm
"""

import torch
import triton
import triton.language as tl

ACCUMULATE = tl.constexpr(tl.float32)


@triton.jit
def load_block(pointer, start, n, BLOCK: tl.constexpr, policy: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    return tl.load(pointer + columns, mask=columns < n, other=0.0, eviction_policy=policy).to(ACCUMULATE)


@triton.jit
def inverse_rms(pointer, n, eps, BLOCK: tl.constexpr):
    squares = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, n, BLOCK):
        x = load_block(pointer, start, n, BLOCK, "evict_last")
        squares += x * x
    return tl.rsqrt(tl.sum(squares, axis=0) / n + eps)


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    rstd = inverse_rms(x_ptr + row, n_cols, eps, BLOCK)
    for start in range(0, n_cols, BLOCK):
        x = load_block(x_ptr + row, start, n_cols, BLOCK, "evict_first")
        y = x * rstd * load_block(weight_ptr, start, n_cols, BLOCK, "evict_last")
        columns = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + row + columns, y.to(y_ptr.dtype.element_ty), mask=columns < n_cols)


def rms_norm(x, weight, eps):
    y = torch.empty_like(x)
    rms_norm_kernel[(x.shape[0],)](x, weight, y, x.shape[1], eps, BLOCK=256, num_warps=4)
    return y
