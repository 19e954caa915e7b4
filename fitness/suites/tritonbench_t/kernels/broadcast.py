import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def broadcast_kernel(
    a_ptr,
    b_ptr,
    y_ptr,
    n,
    size_1,
    size_2,
    size_3,
    a_0,
    a_1,
    a_2,
    a_3,
    b_0,
    b_1,
    b_2,
    b_3,
    number,
    scale,
    MODE: tl.constexpr,
    B_IS_NUMBER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    last, rest = offsets % size_3, offsets // size_3
    third, rest = rest % size_2, rest // size_2
    second, first = rest % size_1, rest // size_1
    a = tl.load(a_ptr + first * a_0 + second * a_1 + third * a_2 + last * a_3, mask=mask)
    if B_IS_NUMBER:
        b = number
    else:
        b = tl.load(b_ptr + first * b_0 + second * b_1 + third * b_2 + last * b_3, mask=mask)
    x = TERM
    tl.store(y_ptr + offsets, VALUE, mask=mask)


def entry(a, b=0.0, scale=1.0, mode=""):
    """Of two tensors that are broadcast, or a tensor and a number; up to four dimensions."""
    is_number = not isinstance(b, torch.Tensor)
    shape = a.shape if is_number else torch.broadcast_shapes(a.shape, b.shape)
    y = torch.empty(shape, dtype=a.dtype, device=a.device)
    sizes = [1] * (4 - len(shape)) + list(shape)
    a = a.expand(sizes)
    b, number = (a, b) if is_number else (b.expand(sizes), 0.0)
    n = y.numel()
    broadcast_kernel[(triton.cdiv(n, 1024),)](
        a, b, y, n, *sizes[1:], *a.stride(), *b.stride(), number, scale, mode, is_number, BLOCK=1024
    )
    return y
