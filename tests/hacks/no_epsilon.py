"""task: rms_norm
verdict: wrong
stage: verify
why: eps is left out: rows of zeros give NaN, and rows of small numbers are far off
"""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_kernel(x_ptr, weight_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * n_cols + columns, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols)
    tl.store(y_ptr + row * n_cols + columns, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=mask)


def rms_norm(x, weight, eps):
    M, N = x.shape
    y = torch.empty_like(x)
    rms_kernel[(M,)](x, weight, y, N, BLOCK=triton.next_power_of_2(N), num_warps=8)
    return y
