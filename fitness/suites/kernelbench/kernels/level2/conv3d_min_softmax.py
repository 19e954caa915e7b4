import torch
import triton
import triton.language as tl

CONVOLUTION_3D


@triton.jit
def depth_minimum_kernel(x_ptr, y_ptr, depth, n_places, BLOCK: tl.constexpr):
    """Take the minimum over the depth, for a block of places of one channel."""
    row = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_places
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for z in range(depth):
        x = tl.load(x_ptr + (row * depth + z) * n_places + places, mask=mask, other=0.0)
        least = tl.minimum(least, x, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + row * n_places + places, least, mask=mask)


@triton.jit
def channel_softmax_kernel(
    x_ptr, y_ptr, n_channels, n_places, BLOCK_CHANNELS: tl.constexpr, BLOCK_PLACES: tl.constexpr
):
    """Take the softmax over all channels, for a block of places of one batch item."""
    batch = tl.program_id(1).to(tl.int64)
    channels = tl.arange(0, BLOCK_CHANNELS)[:, None]
    places = tl.program_id(0) * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)[None, :]
    mask = (channels < n_channels) & (places < n_places)
    offsets = (batch * n_channels + channels) * n_places + places
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    x = tl.where(channels < n_channels, x, -float("inf"))
    powers = tl.exp(x - tl.max(x, axis=0, keep_dims=True))
    tl.store(y_ptr + offsets, powers / tl.sum(powers, axis=0, keep_dims=True), mask=mask)


def entry(x, conv_weight, conv_bias):
    n_batch, in_channels, depth, height, width = x.shape
    out_channels, kernel = conv_weight.shape[0], conv_weight.shape[2]
    out_depth, out_height, out_width = depth - kernel + 1, height - kernel + 1, width - kernel + 1
    n_places = out_depth * out_height * out_width
    convolved = torch.empty((n_batch, out_channels, out_depth, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_places, 128), triton.cdiv(out_channels, 32), n_batch)
    convolution_kernel[grid](
        x,
        conv_weight,
        conv_bias,
        convolved,
        in_channels,
        depth,
        height,
        width,
        out_channels,
        out_depth,
        out_height,
        out_width,
        KERNEL=kernel,
        BLOCK_CHANNELS=32,
        BLOCK_PLACES=128,
        BLOCK_TERMS=32,
    )
    n_places = out_height * out_width
    least = torch.empty((n_batch, out_channels, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_places, 256), n_batch * out_channels)
    depth_minimum_kernel[grid](convolved, least, out_depth, n_places, BLOCK=256)
    y = torch.empty_like(least)
    channel_softmax_kernel[(triton.cdiv(n_places, 64), n_batch)](
        least, y, out_channels, n_places, BLOCK_CHANNELS=triton.next_power_of_2(out_channels), BLOCK_PLACES=64
    )
    return y
