import torch
import triton
import triton.language as tl


@triton.jit
def rotary_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, total_rows, BLOCK_ROWS: tl.constexpr):
    vector = tl.minimum(tl.max_contiguous(tl.multiple_of(tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS), BLOCK_ROWS), BLOCK_ROWS), total_rows - 1)  # of (batch, position, head)
    position = (vector // H) % S
    i = tl.arange(0, BLOCK_SIZE)
    mask = i < HALF
    base = vector * 2 * HALF
    first = tl.load((x_ptr + base)[:, None] + i, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    second = tl.load((x_ptr + base + HALF)[:, None] + i, mask=mask, other=0.0).to(tl.float32)
    c = tl.load((cos_ptr + position * HALF)[:, None] + i, mask=mask, other=0.0).to(tl.float32)
    s = tl.load((sin_ptr + position * HALF)[:, None] + i, mask=mask, other=0.0).to(tl.float32)
    tl.store((y_ptr + base)[:, None] + i, (first * c - second * s).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store((y_ptr + base + HALF)[:, None] + i, (second * c + first * s).to(y_ptr.dtype.element_ty), mask=mask)


def rotary(x, cos, sin):
    B, S, H, D = x.shape
    y = torch.empty_like(x)
    HALF = D // 2
    rotary_kernel[lambda meta: (triton.cdiv(B * S * H, meta["BLOCK_ROWS"]),)](x, cos, sin, y, S, H, HALF=HALF, BLOCK_SIZE=triton.next_power_of_2(HALF), total_rows=B * S * H, BLOCK_ROWS=16, num_warps=4, num_stages=3)
    return y
