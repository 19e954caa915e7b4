import torch
import triton
import triton.language as tl

CONVOLUTION_2D


@triton.jit
def instance_norm_divide_kernel(x_ptr, y_ptr, size, DIVISOR: tl.constexpr, BLOCK: tl.constexpr):
    """Normalises one channel of one image, `size` neighbours, and divides it by `DIVISOR`."""
    start_of_plane = tl.program_id(0).to(tl.int64) * size
    places = tl.arange(0, BLOCK)

    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        sums += tl.load(x_ptr + start_of_plane + start + places, mask=start + places < size, other=0.0)
    mean = tl.sum(sums, axis=0) / size

    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_plane + start + places, mask=mask, other=0.0) - mean
        squares += tl.where(mask, x * x, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / size + 1e-5)

    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_plane + start + places, mask=mask)
        tl.store(y_ptr + start_of_plane + start + places, (x - mean) * inverse / DIVISOR, mask=mask)


def entry(x, conv_weight, conv_bias):
    convolved = convolution(x, conv_weight, conv_bias)
    n_batch, out_channels, out_height, out_width = convolved.shape
    n_positions = out_height * out_width
    y = torch.empty_like(convolved)
    instance_norm_divide_kernel[(n_batch * out_channels,)](convolved, y, n_positions, DIVISOR=2.0, BLOCK=1024)
    return y
