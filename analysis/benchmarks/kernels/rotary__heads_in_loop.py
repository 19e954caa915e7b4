"""A program for each position; its heads are visited in a loop with one row of the tables."""

import torch
import triton
import triton.language as tl


@triton.jit
def heads_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, HALF: tl.constexpr, BLOCK: tl.constexpr):
    position = tl.program_id(0)
    batch = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    mask = i < HALF
    c = tl.load(cos_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    base = (batch * S + position) * H * 2 * HALF
    for head in range(0, H):
        at = base + head * 2 * HALF
        first = tl.load(x_ptr + at + i, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x_ptr + at + HALF + i, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + at + i, (first * c - second * s).to(tl.float16), mask=mask)
        tl.store(y_ptr + at + HALF + i, (second * c + first * s).to(tl.float16), mask=mask)


def rotary(x, cos, sin):
    B, S, H, D = x.shape
    y = torch.empty_like(x)
    HALF = D // 2
    heads_kernel[(S, B)](x, cos, sin, y, S, H, HALF=HALF, BLOCK=triton.next_power_of_2(HALF), num_warps=2)
    return y
