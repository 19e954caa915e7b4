import torch
import triton
import triton.language as tl

CONVOLUTION_3D


@triton.jit
def pool_kernel(x_ptr, y_ptr, depth, height, width, POOL: tl.constexpr, BLOCK: tl.constexpr):
    """Divide by 2, take the maximum of each window and the mean of all maxima, for one channel of one batch item."""
    row = tl.program_id(0).to(tl.int64)
    volume = x_ptr + row * depth * height * width
    pooled_height = height // POOL
    pooled_width = width // POOL
    n_pooled = (depth // POOL) * pooled_height * pooled_width
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_pooled, BLOCK):
        places = start + tl.arange(0, BLOCK)
        mask = places < n_pooled
        z = places // (pooled_height * pooled_width) * POOL
        y = places // pooled_width % pooled_height * POOL
        x = places % pooled_width * POOL
        corners = (z * height + y) * width + x
        largest = tl.full((BLOCK,), -float("inf"), tl.float32)
        for of_window in range(POOL * POOL * POOL):
            window_z = of_window // (POOL * POOL)
            window_y = of_window // POOL % POOL
            window_x = of_window % POOL
            offset = (window_z * height + window_y) * width + window_x
            value = tl.load(volume + corners + offset, mask=mask, other=0.0) / 2.0
            largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
        sums += tl.where(mask, largest, 0.0)
    tl.store(y_ptr + row, tl.sum(sums, axis=0) / n_pooled)


@triton.jit
def channel_sum_kernel(x_ptr, bias_ptr, y_ptr, n_channels, BLOCK: tl.constexpr):
    """Add the bias of each channel and sum over the channels, for one batch item."""
    batch = tl.program_id(0)
    channels = tl.arange(0, BLOCK)
    mask = channels < n_channels
    x = tl.load(x_ptr + batch * n_channels + channels, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + channels, mask=mask, other=0.0)
    tl.store(y_ptr + batch, tl.sum(x + bias, axis=0))


def entry(x, bias, conv_weight, conv_bias):
    n_batch, in_channels, depth, height, width = x.shape
    out_channels, kernel = conv_weight.shape[0], conv_weight.shape[2]
    out_depth, out_height, out_width = depth - kernel + 1, height - kernel + 1, width - kernel + 1
    n_places = out_depth * out_height * out_width
    convolved = torch.empty((n_batch, out_channels, out_depth, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_places, 128), triton.cdiv(out_channels, 16), n_batch)
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
        BLOCK_CHANNELS=16,
        BLOCK_PLACES=128,
        BLOCK_TERMS=32,
    )
    means = torch.empty((n_batch, out_channels), dtype=x.dtype, device=x.device)
    pool_kernel[(n_batch * out_channels,)](convolved, means, out_depth, out_height, out_width, POOL=2, BLOCK=1024)
    y = torch.empty((n_batch, 1, 1, 1), dtype=x.dtype, device=x.device)
    channel_sum_kernel[(n_batch,)](means, bias, y, out_channels, BLOCK=triton.next_power_of_2(out_channels))
    return y
