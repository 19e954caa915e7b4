import torch
import triton
import triton.language as tl

CONVOLUTION_2D


@triton.jit
def multiply_leaky_relu_gelu_kernel(x_ptr, multiplier_ptr, y_ptr, n_channels, size, BLOCK: tl.constexpr):
    """Multiplies one channel of one image, `size` neighbours, by its number, then applies LeakyReLU and GELU."""
    plane = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = places < size
    x = tl.load(x_ptr + plane * size + places, mask=mask) * tl.load(multiplier_ptr + plane % n_channels)
    x = tl.where(x > 0.0, x, 0.01 * x)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + plane * size + places, y, mask=mask)


def entry(x, multiplier, conv_weight, conv_bias):
    convolved = convolution(x, conv_weight, conv_bias)
    n_batch, out_channels, out_height, out_width = convolved.shape
    n_positions = out_height * out_width
    y = torch.empty_like(convolved)
    grid = (n_batch * out_channels, triton.cdiv(n_positions, 1024))
    multiply_leaky_relu_gelu_kernel[grid](convolved, multiplier, y, out_channels, n_positions, BLOCK=1024)
    return y
