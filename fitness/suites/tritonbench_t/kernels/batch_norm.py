import torch
import triton
import triton.language as tl


@triton.jit
def batch_norm_kernel(
    x_ptr, mean_ptr, variance_ptr, weight_ptr, bias_ptr, y_ptr, n, n_channels, inner, eps,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    channel = offsets // inner % n_channels
    x = tl.load(x_ptr + offsets, mask=mask) - tl.load(mean_ptr + channel, mask=mask)
    x = x / tl.sqrt(tl.load(variance_ptr + channel, mask=mask) + eps)
    if HAS_WEIGHT:
        x = x * tl.load(weight_ptr + channel, mask=mask)
    if HAS_BIAS:
        x = x + tl.load(bias_ptr + channel, mask=mask)
    tl.store(y_ptr + offsets, VALUE, mask=mask)


def entry(x, mean, variance, weight, bias, eps):
    """With statistics that are known."""
    n, n_channels = x.numel(), x.shape[1]
    has_weight, has_bias = weight is not None, bias is not None
    y = torch.empty_like(x)
    batch_norm_kernel[(triton.cdiv(n, 1024),)](
        x, mean, variance, weight if has_weight else x, bias if has_bias else x, y, n, n_channels,
        n // (x.shape[0] * n_channels), eps, HAS_WEIGHT=has_weight, HAS_BIAS=has_bias, BLOCK=1024,
    )  # fmt: skip
    return y
