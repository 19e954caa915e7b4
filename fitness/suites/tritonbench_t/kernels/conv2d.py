import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def conv2d_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    y_ptr,
    n,
    n_in,
    x_height,
    x_width,
    n_out,
    y_height,
    y_width,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    dilation_h,
    dilation_w,
    w_in,
    out_of_group,
    s,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`w_in` channels of a group make `out_of_group` of the outcome."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    column, rest = offsets % y_width, offsets // y_width
    row, rest = rest % y_height, rest // y_height
    channel, image = rest % n_out, rest // n_out
    first = channel // out_of_group * w_in

    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(w_in):
        plane = x_ptr + (image * n_in + first + at) * x_height * x_width
        weights = w_ptr + (channel * w_in + at) * HEIGHT * WIDTH
        for i in range(HEIGHT):
            for j in range(WIDTH):
                h = row * stride_h - pad_h + i * dilation_h
                w = column * stride_w - pad_w + j * dilation_w
                mask = inside & (h >= 0) & (h < x_height) & (w >= 0) & (w < x_width)
                x = tl.load(plane + h * x_width + w, mask=mask, other=0.0)
                total += x * tl.load(weights + i * WIDTH + j, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + channel, mask=inside, other=0.0)
    x = total
    tl.store(y_ptr + offsets, VALUE, mask=inside)


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def entry(x, w, bias, stride, padding, dilation, groups, s=1.0):
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    n_images, n_in, x_height, x_width = x.shape
    n_out, w_in, height, width = w.shape
    y_height = (x_height + 2 * padding[0] - dilation[0] * (height - 1) - 1) // stride[0] + 1
    y_width = (x_width + 2 * padding[1] - dilation[1] * (width - 1) - 1) // stride[1] + 1
    y = torch.empty((n_images, n_out, y_height, y_width), dtype=x.dtype, device=x.device)
    has_bias = bias is not None
    n = y.numel()
    conv2d_kernel[(triton.cdiv(n, 256),)](
        x, w, bias if has_bias else w, y, n, n_in, x_height, x_width, n_out, y_height, y_width,
        *stride, *padding, *dilation, w_in, n_out // groups, s,
        HEIGHT=height, WIDTH=width, HAS_BIAS=has_bias, BLOCK=256,
    )  # fmt: skip
    return y
