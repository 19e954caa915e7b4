import torch
import triton
import triton.language as tl

TRANSPOSED_2D


@triton.jit
def scale_mean_kernel(x_ptr, y_ptr, inner, scale, BLOCK: tl.constexpr):
    """Scales one channel of one sample and takes its mean; a second mean, of one number, changes nothing."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, inner, BLOCK):
        sums += tl.load(x_ptr + row * inner + start + places, mask=start + places < inner, other=0.0) * scale
    tl.store(y_ptr + row, tl.sum(sums, axis=0) / inner)


def entry(x, conv_transpose_weight, conv_transpose_bias):
    n_batch, n_in, height, width = x.shape
    n_out = conv_transpose_weight.shape[1]
    out_height, out_width = height * 2, width * 2
    a = torch.empty((n_batch, n_out, out_height, out_width), dtype=x.dtype, device=x.device)
    places = triton.cdiv(out_height, 2) * triton.cdiv(out_width, 2)
    grid = (triton.cdiv(places, 64), triton.cdiv(n_out, 64), n_batch * 4)
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
        KERNEL=3,
        STRIDE=2,
        PADDING=1,
        BLOCK_CHANNELS=64,
        BLOCK_PLACES=64,
        BLOCK_K=32,
    )

    y = torch.empty((n_batch, n_out, 1, 1), dtype=x.dtype, device=x.device)
    scale_mean_kernel[(n_batch * n_out,)](a, y, out_height * out_width, 0.5, BLOCK=1024)
    return y
