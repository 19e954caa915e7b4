import torch
import triton
import triton.language as tl


@triton.jit
def conv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    in_channels,
    height,
    width,
    out_channels,
    out_height,
    out_width,
    KERNEL_HEIGHT: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Convolves one image: a tile of output channels x output positions, summed over input channels and taps."""
    batch = tl.program_id(2).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    positions = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    n_positions = out_height * out_width
    n_inner = in_channels * KERNEL_HEIGHT * KERNEL_WIDTH
    image = x_ptr + batch * in_channels * height * width
    corners = (positions // out_width) * width + positions % out_width

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, n_inner, BLOCK_K):
        of_weight = start + tl.arange(0, BLOCK_K)[None, :]
        of_x = start + tl.arange(0, BLOCK_K)[:, None]
        channel = of_x // (KERNEL_HEIGHT * KERNEL_WIDTH)
        row = of_x // KERNEL_WIDTH % KERNEL_HEIGHT
        column = of_x % KERNEL_WIDTH
        places = (channel * height + row) * width + column + corners
        weight_mask = (channels < out_channels) & (of_weight < n_inner)
        weight = tl.load(weight_ptr + channels * n_inner + of_weight, mask=weight_mask, other=0.0)
        x = tl.load(image + places, mask=(of_x < n_inner) & (positions < n_positions), other=0.0)
        total += tl.dot(weight, x, input_precision="ieee")

    total += tl.load(bias_ptr + channels, mask=channels < out_channels, other=0.0)
    places = (batch * out_channels + channels) * n_positions + positions
    tl.store(y_ptr + places, total, mask=(channels < out_channels) & (positions < n_positions))


def convolution(x, weight, bias):
    n_batch, in_channels, height, width = x.shape
    out_channels, _, kernel_height, kernel_width = weight.shape
    out_height, out_width = height - kernel_height + 1, width - kernel_width + 1
    n_positions = out_height * out_width
    y = torch.empty((n_batch, out_channels, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_positions, 64), triton.cdiv(out_channels, 64), n_batch)
    conv_kernel[grid](
        x,
        weight,
        bias,
        y,
        in_channels,
        height,
        width,
        out_channels,
        out_height,
        out_width,
        KERNEL_HEIGHT=kernel_height,
        KERNEL_WIDTH=kernel_width,
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
    )
    return y
