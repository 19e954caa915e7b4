import torch
import triton
import triton.language as tl

TRANSPOSED_3D


ROW_STATISTICS


CHANNEL_STATISTICS


@triton.jit
def normalise_kernel(x_ptr, mean_ptr, inverse_ptr, weight_ptr, bias_ptr, y_ptr, n_channels, inner, BLOCK: tl.constexpr):
    """Applies the statistics, the weight and the bias of its channel to each number."""
    row = tl.program_id(0).to(tl.int64)
    channel = row % n_channels
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = places < inner
    x = tl.load(x_ptr + row * inner + places, mask=mask, other=0.0) - tl.load(mean_ptr + channel)
    y = x * tl.load(inverse_ptr + channel) * tl.load(weight_ptr + channel) + tl.load(bias_ptr + channel)
    tl.store(y_ptr + row * inner + places, y, mask=mask)


@triton.jit
def average_pool_kernel(
    x_ptr, y_ptr, depth, height, width, out_depth, out_height, out_width, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):
    """The mean of each window."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = out_depth * out_height * out_width
    mask = places < inner
    d = places // (out_height * out_width) * WINDOW
    h = places // out_width % out_height * WINDOW
    w = places % out_width * WINDOW
    x_ptr += row * depth * height * width
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(WINDOW):
        for j in range(WINDOW):
            for k in range(WINDOW):
                total += tl.load(x_ptr + ((d + i) * height + h + j) * width + w + k, mask=mask, other=0.0)
    total /= WINDOW * WINDOW * WINDOW
    tl.store(y_ptr + row * inner + places, total, mask=mask)


def average_pool(x):
    n_batch, n_channels, depth, height, width = x.shape
    sizes = (depth // 2, height // 2, width // 2)
    y = torch.empty((n_batch, n_channels, *sizes), dtype=x.dtype, device=x.device)
    grid = (n_batch * n_channels, triton.cdiv(sizes[0] * sizes[1] * sizes[2], 1024))
    average_pool_kernel[grid](x, y, depth, height, width, *sizes, WINDOW=2, BLOCK=1024)
    return y


def entry(x, conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias):
    n_batch, n_in, depth, height, width = x.shape
    n_out = conv_transpose_weight.shape[1]
    out_depth, out_height, out_width = depth * 2 - 1, height * 2 - 1, width * 2 - 1
    shape = (n_batch, n_out, out_depth, out_height, out_width)
    a = torch.empty(shape, dtype=x.dtype, device=x.device)
    places = triton.cdiv(out_depth, 2) * triton.cdiv(out_height, 2) * triton.cdiv(out_width, 2)
    grid = (triton.cdiv(places, 64), triton.cdiv(n_out, 16), n_batch * 8)
    conv_transpose_kernel[grid](
        x,
        conv_transpose_weight,
        conv_transpose_bias,
        a,
        n_in,
        n_out,
        depth,
        height,
        width,
        out_depth,
        out_height,
        out_width,
        KERNEL=3,
        STRIDE=2,
        PADDING=1,
        BLOCK_CHANNELS=16,
        BLOCK_PLACES=64,
        BLOCK_K=32,
    )

    inner = out_depth * out_height * out_width
    row_mean = torch.empty((n_batch, n_out), dtype=x.dtype, device=x.device)
    row_squares = torch.empty((n_batch, n_out), dtype=x.dtype, device=x.device)
    row_statistics_kernel[(n_batch * n_out,)](a, row_mean, row_squares, inner, BLOCK=1024)
    mean = torch.empty((n_out,), dtype=x.dtype, device=x.device)
    inverse = torch.empty((n_out,), dtype=x.dtype, device=x.device)
    channel_statistics_kernel[(n_out,)](row_mean, row_squares, mean, inverse, n_batch, n_out, inner, BLOCK=256)
    b = torch.empty_like(a)
    grid = (n_batch * n_out, triton.cdiv(inner, 1024))
    normalise_kernel[grid](a, mean, inverse, batch_norm_weight, batch_norm_bias, b, n_out, inner, BLOCK=1024)
    return average_pool(average_pool(b))
