"""Tiles of several heads of one position; table rows loaded once a tile.  Input and output seen as (B*S, H, D).

task: rotary
"""

import torch
import triton
import triton.language as tl

HEADS = 2  # heads a program


@triton.jit
def tiled_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, HALF: tl.constexpr, PAD: tl.constexpr, HEADS: tl.constexpr):
    token = tl.program_id(1).to(tl.int64)
    heads = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, PAD)
    table = (token % S) * HALF + i
    c = tl.load(cos_ptr + table, mask=i < HALF, other=0.0)[None, :].to(tl.float32)
    s = tl.load(sin_ptr + table, mask=i < HALF, other=0.0)[None, :].to(tl.float32)
    low = (token * H + heads[:, None]) * (2 * HALF) + i[None, :]
    mask = (heads < H)[:, None] & (i < HALF)[None, :]
    a = tl.load(x_ptr + low, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + low + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + low, (a * c - b * s).to(tl.float16), mask=mask)
    tl.store(y_ptr + low + HALF, (b * c + a * s).to(tl.float16), mask=mask)


def rotary(x, cos, sin):
    B, S, H, D = x.shape
    tokens = x.reshape(B * S, H, D)
    y = torch.empty_like(tokens)
    half = D // 2
    grid = (triton.cdiv(H, HEADS), tokens.shape[0])
    tiled_kernel[grid](tokens, cos, sin, y, S, H, HALF=half, PAD=triton.next_power_of_2(half), HEADS=HEADS, num_warps=2)
    return y.view(B, S, H, D)
