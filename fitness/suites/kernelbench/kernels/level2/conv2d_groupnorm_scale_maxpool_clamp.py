import torch
import triton
import triton.language as tl

CONVOLUTION_2D


@triton.jit
def group_norm_scale_kernel(
    x_ptr, weight_ptr, bias_ptr, scale_ptr, y_ptr, size, n_groups, channels, inner, BLOCK: tl.constexpr
):
    """Normalises a group, `size` neighbours in `channels` channels of `inner`, then scales each of its channels."""
    group = tl.program_id(0)
    start_of_group = group.to(tl.int64) * size
    places = tl.arange(0, BLOCK)

    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        sums += tl.load(x_ptr + start_of_group + start + places, mask=start + places < size, other=0.0)
    mean = tl.sum(sums, axis=0) / size

    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_group + start + places, mask=mask, other=0.0) - mean
        squares += tl.where(mask, x * x, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / size + 1e-5)

    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_group + start + places, mask=mask)
        channel = (group % n_groups) * channels + (start + places) // inner
        weight = tl.load(weight_ptr + channel, mask=mask)
        bias = tl.load(bias_ptr + channel, mask=mask)
        scale = tl.load(scale_ptr + channel, mask=mask)
        y = ((x - mean) * inverse * weight + bias) * scale
        tl.store(y_ptr + start_of_group + start + places, y, mask=mask)


@triton.jit
def max_pool_clamp_kernel(
    x_ptr,
    y_ptr,
    height,
    width,
    pooled_height,
    pooled_width,
    WINDOW: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes the largest of each window of one channel of one image, and clamps it."""
    plane = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n_pooled = pooled_height * pooled_width
    mask = places < n_pooled
    corners = (places // pooled_width) * WINDOW * width + (places % pooled_width) * WINDOW
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for row in range(WINDOW):
        for column in range(WINDOW):
            x = tl.load(x_ptr + plane * height * width + corners + row * width + column, mask=mask)
            largest = tl.maximum(largest, x)
    tl.store(y_ptr + plane * n_pooled + places, tl.minimum(tl.maximum(largest, LOW), HIGH), mask=mask)


def entry(x, scale, conv_weight, conv_bias, group_norm_weight, group_norm_bias):
    convolved = convolution(x, conv_weight, conv_bias)
    n_batch, out_channels, out_height, out_width = convolved.shape
    n_positions = out_height * out_width
    n_groups = 16
    channels = out_channels // n_groups
    scaled = torch.empty_like(convolved)
    group_norm_scale_kernel[(n_batch * n_groups,)](
        convolved,
        group_norm_weight,
        group_norm_bias,
        scale,
        scaled,
        channels * n_positions,
        n_groups,
        channels,
        n_positions,
        BLOCK=1024,
    )
    pooled_height, pooled_width = out_height // 4, out_width // 4
    y = torch.empty((n_batch, out_channels, pooled_height, pooled_width), dtype=x.dtype, device=x.device)
    grid = (n_batch * out_channels, triton.cdiv(pooled_height * pooled_width, 256))
    max_pool_clamp_kernel[grid](
        scaled, y, out_height, out_width, pooled_height, pooled_width, WINDOW=4, LOW=0.0, HIGH=1.0, BLOCK=256
    )
    return y
