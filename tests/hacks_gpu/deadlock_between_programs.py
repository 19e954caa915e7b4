"""task: softmax
verdict: timeout
stage: verify
why: programs wait for others that cannot start before they end
"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, flag_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + columns, e / tl.sum(e, axis=0), mask=mask)
    last = tl.num_programs(0) - 1
    if row == last:
        tl.atomic_xchg(flag_ptr, 1)
    while tl.atomic_add(flag_ptr, 0) != 1:
        pass


def softmax(x):
    M, N = x.shape
    y, flag = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
    softmax_kernel[(M,)](x, y, flag, x.stride(0), N, BLOCK=triton.next_power_of_2(N))
    return y
