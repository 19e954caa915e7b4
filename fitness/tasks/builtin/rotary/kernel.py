import torch
import triton
import triton.language as tl


@triton.jit
def rotary_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    vector = tl.program_id(0).to(tl.int64)  # of (batch, position, head)
    position = (vector // H) % S
    i = tl.arange(0, BLOCK_SIZE)
    mask = i < HALF
    base = vector * 2 * HALF
    first = tl.load(x_ptr + base + i, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + base + HALF + i, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin_ptr + position * HALF + i, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + base + i, (first * c - second * s).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + base + HALF + i, (second * c + first * s).to(y_ptr.dtype.element_ty), mask=mask)


def rotary(x, cos, sin):
    B, S, H, D = x.shape
    y = torch.empty_like(x)
    HALF = D // 2
    rotary_kernel[(B * S * H,)](x, cos, sin, y, S, H, HALF=HALF, BLOCK_SIZE=triton.next_power_of_2(HALF), num_warps=4)
    return y
