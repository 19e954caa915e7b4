import torch
import triton
import triton.language as tl

CONVOLUTION_3D


@triton.jit
def activation_kernel(x_ptr, addend_ptr, y_ptr, n_channels, n_places, BLOCK: tl.constexpr):
    """Apply leaky ReLU, add the addend of the channel, clamp to [-1, 1] and apply GELU, for a block of one channel."""
    batch = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_places
    row = (batch * n_channels + channel) * n_places
    x = tl.load(x_ptr + row + places, mask=mask, other=0.0)
    x = tl.where(x < 0.0, 0.2 * x, x) + tl.load(addend_ptr + channel)
    x = tl.where(x < -1.0, -1.0, x)
    x = tl.where(x > 1.0, 1.0, x)
    x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + row + places, x, mask=mask)


def entry(x, sum_tensor, conv_weight, conv_bias):
    n_batch, in_channels, depth, height, width = x.shape
    out_channels, kernel = conv_weight.shape[0], conv_weight.shape[2]
    out_depth, out_height, out_width = depth - kernel + 1, height - kernel + 1, width - kernel + 1
    n_places = out_depth * out_height * out_width
    convolved = torch.empty((n_batch, out_channels, out_depth, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_places, 64), triton.cdiv(out_channels, 64), n_batch)
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
        BLOCK_CHANNELS=64,
        BLOCK_PLACES=64,
        BLOCK_TERMS=32,
    )
    y = torch.empty_like(convolved)
    grid = (triton.cdiv(n_places, 1024), out_channels, n_batch)
    activation_kernel[grid](convolved, sum_tensor, y, out_channels, n_places, BLOCK=1024)
    return y
