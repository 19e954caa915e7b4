"""Pairs of elements in one flat range; head and position are computed from the index."""

import torch
import triton
import triton.language as tl


@triton.jit
def flat_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, pairs, S, H, HALF, BLOCK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = pair < pairs
    i = pair % HALF
    vector = pair // HALF
    position = (vector // H) % S
    low = vector * 2 * HALF + i
    c = tl.load(cos_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    first = tl.load(x_ptr + low, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + low + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + low, (first * c - second * s).to(tl.float16), mask=mask)
    tl.store(y_ptr + low + HALF, (second * c + first * s).to(tl.float16), mask=mask)


def rotary(x, cos, sin):
    B, S, H, D = x.shape
    y = torch.empty_like(x)
    pairs = x.numel() // 2
    flat_kernel[(triton.cdiv(pairs, 256),)](x, cos, sin, y, pairs, S, H, D // 2, BLOCK=256, num_warps=4)
    return y
