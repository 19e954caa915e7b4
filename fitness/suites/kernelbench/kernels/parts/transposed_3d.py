import triton
import triton.language as tl


@triton.jit
def conv_transpose_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_in,
    n_out,
    depth,
    height,
    width,
    out_depth,
    out_height,
    out_width,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Transposed convolution: a program takes places `phase + STRIDE * i`, which the same kernel positions reach."""
    PHASES: tl.constexpr = STRIDE * STRIDE * STRIDE
    batch = (tl.program_id(2) // PHASES).to(tl.int64)
    phase_w = tl.program_id(2) % STRIDE
    phase_h = tl.program_id(2) // STRIDE % STRIDE
    phase_d = tl.program_id(2) // (STRIDE * STRIDE) % STRIDE

    # The places of this phase, in strides.
    n_d = tl.cdiv(out_depth - phase_d, STRIDE)
    n_h = tl.cdiv(out_height - phase_h, STRIDE)
    n_w = tl.cdiv(out_width - phase_w, STRIDE)
    places = tl.program_id(0) * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)[None, :]
    d = places // (n_h * n_w)
    h = places // n_w % n_h
    w = places % n_w

    # The kernel positions that reach them: `first + STRIDE * tap`.
    first_d = (phase_d + PADDING) % STRIDE
    first_h = (phase_h + PADDING) % STRIDE
    first_w = (phase_w + PADDING) % STRIDE
    taps_d = tl.cdiv(KERNEL - first_d, STRIDE)
    taps_h = tl.cdiv(KERNEL - first_h, STRIDE)
    taps_w = tl.cdiv(KERNEL - first_w, STRIDE)

    channels = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)[:, None]
    x_ptr += batch * n_in * depth * height * width
    y_ptr += batch * n_out * out_depth * out_height * out_width
    K = n_in * taps_d * taps_h * taps_w
    total = tl.zeros((BLOCK_CHANNELS, BLOCK_PLACES), tl.float32)
    for start in range(0, K, BLOCK_K):
        of_a = start + tl.arange(0, BLOCK_K)[None, :]
        kernel_d = first_d + STRIDE * (of_a // (taps_h * taps_w) % taps_d)
        kernel_h = first_h + STRIDE * (of_a // taps_w % taps_h)
        kernel_w = first_w + STRIDE * (of_a % taps_w)
        a_places = of_a // (taps_d * taps_h * taps_w) * n_out + channels
        a_places = ((a_places * KERNEL + kernel_d) * KERNEL + kernel_h) * KERNEL + kernel_w
        a = tl.load(weight_ptr + a_places, mask=(channels < n_out) & (of_a < K), other=0.0)

        of_b = start + tl.arange(0, BLOCK_K)[:, None]
        from_d = d + (phase_d + PADDING) // STRIDE - of_b // (taps_h * taps_w) % taps_d
        from_h = h + (phase_h + PADDING) // STRIDE - of_b // taps_w % taps_h
        from_w = w + (phase_w + PADDING) // STRIDE - of_b % taps_w
        b_places = of_b // (taps_d * taps_h * taps_w) * depth + from_d
        b_places = (b_places * height + from_h) * width + from_w
        mask = (of_b < K) & (d < n_d) & (from_d >= 0) & (from_d < depth)
        mask = mask & (from_h >= 0) & (from_h < height) & (from_w >= 0) & (from_w < width)
        b = tl.load(x_ptr + b_places, mask=mask, other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    total += tl.load(bias_ptr + channels, mask=channels < n_out, other=0.0)

    y_places = channels * out_depth + d * STRIDE + phase_d
    y_places = (y_places * out_height + h * STRIDE + phase_h) * out_width + w * STRIDE + phase_w
    tl.store(y_ptr + y_places, total, mask=(channels < n_out) & (d < n_d))
