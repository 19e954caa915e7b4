import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

TRANSPOSED_2D


ROW_STATISTICS


CHANNEL_STATISTICS


@triton.jit
def normalise_kernel(x_ptr, mean_ptr, inverse_ptr, weight_ptr, bias_ptr, y_ptr, n_channels, inner, BLOCK: tl.constexpr):
    """Applies the statistics, the weight and the bias of its channel; the tanh of that."""
    row = tl.program_id(0).to(tl.int64)
    channel = row % n_channels
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = places < inner
    x = tl.load(x_ptr + row * inner + places, mask=mask, other=0.0) - tl.load(mean_ptr + channel)
    y = x * tl.load(inverse_ptr + channel) * tl.load(weight_ptr + channel) + tl.load(bias_ptr + channel)
    tl.store(y_ptr + row * inner + places, libdevice.tanh(y), mask=mask)


@triton.jit
def max_pool_kernel(x_ptr, y_ptr, height, width, out_height, out_width, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """The largest of each window."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = out_height * out_width
    mask = places < inner
    h = places // out_width * WINDOW
    w = places % out_width * WINDOW
    x_ptr += row * height * width
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for i in range(WINDOW):
        for j in range(WINDOW):
            largest = tl.maximum(largest, tl.load(x_ptr + (h + i) * width + w + j, mask=mask, other=0.0))
    tl.store(y_ptr + row * inner + places, largest, mask=mask)


@triton.jit
def group_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, n_groups, channels_of_group, inner, BLOCK: tl.constexpr):
    """Normalises the neighbouring channels of one group of one sample; each has its weight and bias."""
    group = tl.program_id(0)
    size = channels_of_group * inner
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
        x = tl.load(x_ptr + start_of_group + start + places, mask=mask, other=0.0)
        channel = (group % n_groups) * channels_of_group + (start + places) // inner
        weight = tl.load(weight_ptr + channel, mask=mask, other=0.0)
        bias = tl.load(bias_ptr + channel, mask=mask, other=0.0)
        tl.store(y_ptr + start_of_group + start + places, (x - mean) * inverse * weight + bias, mask=mask)


def entry(
    x,
    conv_transpose_weight,
    conv_transpose_bias,
    batch_norm_weight,
    batch_norm_bias,
    group_norm_weight,
    group_norm_bias,
):
    n_batch, n_in, height, width = x.shape
    n_out = conv_transpose_weight.shape[1]
    out_height, out_width = height + 2, width + 2
    inner = out_height * out_width
    a = torch.empty((n_batch, n_out, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(inner, 64), triton.cdiv(n_out, 64), n_batch)
    conv_transpose_kernel[grid](
        x,
        conv_transpose_weight,
        conv_transpose_bias,
        a,
        n_in,
        n_out,
        height,
        width,
        out_height,
        out_width,
        KERNEL=5,
        STRIDE=1,
        PADDING=1,
        BLOCK_CHANNELS=64,
        BLOCK_PLACES=64,
        BLOCK_K=32,
    )

    row_mean = torch.empty((n_batch, n_out), dtype=x.dtype, device=x.device)
    row_squares = torch.empty((n_batch, n_out), dtype=x.dtype, device=x.device)
    row_statistics_kernel[(n_batch * n_out,)](a, row_mean, row_squares, inner, BLOCK=1024)
    mean = torch.empty((n_out,), dtype=x.dtype, device=x.device)
    inverse = torch.empty((n_out,), dtype=x.dtype, device=x.device)
    channel_statistics_kernel[(n_out,)](row_mean, row_squares, mean, inverse, n_batch, n_out, inner, BLOCK=256)
    b = torch.empty_like(a)
    grid = (n_batch * n_out, triton.cdiv(inner, 1024))
    normalise_kernel[grid](a, mean, inverse, batch_norm_weight, batch_norm_bias, b, n_out, inner, BLOCK=1024)

    pooled_height, pooled_width = out_height // 2, out_width // 2
    pooled = pooled_height * pooled_width
    c = torch.empty((n_batch, n_out, pooled_height, pooled_width), dtype=x.dtype, device=x.device)
    grid = (n_batch * n_out, triton.cdiv(pooled, 512))
    max_pool_kernel[grid](b, c, out_height, out_width, pooled_height, pooled_width, WINDOW=2, BLOCK=512)

    n_groups = 8
    y = torch.empty_like(c)
    group_norm_kernel[(n_batch * n_groups,)](
        c, group_norm_weight, group_norm_bias, y, n_groups, n_out // n_groups, pooled, BLOCK=1024
    )
    return y
