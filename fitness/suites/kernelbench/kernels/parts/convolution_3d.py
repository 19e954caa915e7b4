import triton
import triton.language as tl


@triton.jit
def convolution_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    in_channels,
    depth,
    height,
    width,
    out_channels,
    out_depth,
    out_height,
    out_width,
    KERNEL: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_TERMS: tl.constexpr,
):
    """Convolve with a cubic kernel, stride 1, no padding, and add the bias, for a tile of (channels, output places)."""
    batch = tl.program_id(2).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)[:, None]
    places = tl.program_id(0) * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)[None, :]
    n_places = out_depth * out_height * out_width
    n_terms = in_channels * KERNEL * KERNEL * KERNEL
    out_z = places // (out_height * out_width)
    out_y = places // out_width % out_height
    out_x = places % out_width
    corners = (out_z * height + out_y) * width + out_x
    volume = x_ptr + batch * in_channels * depth * height * width
    total = tl.zeros((BLOCK_CHANNELS, BLOCK_PLACES), tl.float32)
    for start in range(0, n_terms, BLOCK_TERMS):
        of_weight = start + tl.arange(0, BLOCK_TERMS)[None, :]
        of_x = start + tl.arange(0, BLOCK_TERMS)[:, None]
        in_channel = of_x // (KERNEL * KERNEL * KERNEL)
        kernel_z = of_x // (KERNEL * KERNEL) % KERNEL
        kernel_y = of_x // KERNEL % KERNEL
        kernel_x = of_x % KERNEL
        offsets = ((in_channel * depth + kernel_z) * height + kernel_y) * width + kernel_x
        weight_mask = (channels < out_channels) & (of_weight < n_terms)
        weight = tl.load(weight_ptr + channels * n_terms + of_weight, mask=weight_mask, other=0.0)
        x = tl.load(volume + offsets + corners, mask=(of_x < n_terms) & (places < n_places), other=0.0)
        total += tl.dot(weight, x, input_precision="ieee")
    total += tl.load(bias_ptr + channels, mask=channels < out_channels, other=0.0)
    mask = (channels < out_channels) & (places < n_places)
    tl.store(y_ptr + (batch * out_channels + channels) * n_places + places, total, mask=mask)
