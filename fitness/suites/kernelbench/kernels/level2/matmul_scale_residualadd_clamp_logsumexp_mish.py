import torch
import triton
import triton.language as tl

LINEAR


@triton.jit
def scale_double_clamp_kernel(
    x_ptr, y_ptr, size, SCALE: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr
):
    """Scales each element, adds it to itself and clamps the sum."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < size) * SCALE
    x = x + x
    tl.store(y_ptr + places, tl.minimum(tl.maximum(x, LOW), HIGH), mask=places < size)


@triton.jit
def logsumexp_mish_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    """Computes v * mish(v) of v = the logarithm of the sum of the exponentials of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)

    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        x = tl.load(x_ptr + row * n_columns + start + columns, mask=mask, other=-float("inf"))
        largest = tl.maximum(largest, x)
    top = tl.max(largest, axis=0)

    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        x = tl.load(x_ptr + row * n_columns + start + columns, mask=mask, other=-float("inf"))
        sums += tl.exp(x - top)
    value = top + tl.log(tl.sum(sums, axis=0))

    # mish(v) = v * tanh(log(1 + e)) = v * n / (n + 2) with e = exp(v), n = e * (e + 2).
    e = tl.exp(tl.minimum(value, 20.0))
    n = e * (e + 2.0)
    mish = value * n / (n + 2.0)
    tl.store(y_ptr + row, value * mish)


def entry(x, matmul_weight, matmul_bias):
    product = linear(x, matmul_weight, matmul_bias)
    n_rows, n_columns = product.shape
    clamped = torch.empty_like(product)
    size = product.numel()
    scale_double_clamp_kernel[(triton.cdiv(size, 1024),)](
        product, clamped, size, SCALE=2.0, LOW=-10.0, HIGH=10.0, BLOCK=1024
    )
    y = torch.empty((n_rows, 1), dtype=x.dtype, device=x.device)
    logsumexp_mish_kernel[(n_rows,)](clamped, y, n_columns, BLOCK=1024)
    return y
