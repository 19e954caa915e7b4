import torch
import triton
import triton.language as tl


@triton.jit
def channel_norm_kernel(x_ptr, y_ptr, n_channels, n_inner, BLOCK: tl.constexpr):
    """Each place of the last dimensions is divided by the root mean square over the channels."""
    start = tl.program_id(0).to(tl.int64) * n_channels * n_inner
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n_inner

    squares = tl.zeros((BLOCK,), tl.float32)
    for channel in range(n_channels):
        x = tl.load(x_ptr + start + channel * n_inner + places, mask=mask, other=0.0)
        squares += x * x
    root = tl.sqrt(squares / n_channels + 1e-5)

    for channel in range(n_channels):
        x = tl.load(x_ptr + start + channel * n_inner + places, mask=mask)
        tl.store(y_ptr + start + channel * n_inner + places, x / root, mask=mask)


def entry(x):
    batch, channels = x.shape[0], x.shape[1]
    inner = x.numel() // (batch * channels)
    y = torch.empty_like(x)
    channel_norm_kernel[(batch, triton.cdiv(inner, 256))](x, y, channels, inner, BLOCK=256)
    return y
