import torch
import triton
import triton.language as tl

TRANSPOSED_3D


@triton.jit
def layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_rows,
    n_columns,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Normalises each row."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    mask = (rows < n_rows) & (columns < n_columns)
    x = tl.load(x_ptr + rows * n_columns + columns, mask=mask, other=0.0)
    mean = tl.sum(tl.where(mask, x, 0.0), axis=1, keep_dims=True) / n_columns
    x = tl.where(mask, x - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / n_columns + 1e-5)
    weight = tl.load(weight_ptr + columns, mask=columns < n_columns, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=columns < n_columns, other=0.0)
    tl.store(y_ptr + rows * n_columns + columns, x * inverse * weight + bias, mask=mask)


@triton.jit
def gelu_scale_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    """The GELU of each number, times a scale."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n, other=0.0)
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)) * scale
    tl.store(y_ptr + places, y, mask=places < n)


def entry(x, conv_transpose_weight, conv_transpose_bias, layer_norm_weight, layer_norm_bias):
    n_batch, n_in, depth, height, width = x.shape
    n_out = conv_transpose_weight.shape[1]
    out_depth, out_height, out_width = depth * 2, height * 2, width * 2
    shape = (n_batch, n_out, out_depth, out_height, out_width)
    a = torch.empty(shape, dtype=x.dtype, device=x.device)
    places = triton.cdiv(out_depth, 2) * triton.cdiv(out_height, 2) * triton.cdiv(out_width, 2)
    grid = (triton.cdiv(places, 64), triton.cdiv(n_out, 64), n_batch * 8)
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
        KERNEL=4,
        STRIDE=2,
        PADDING=1,
        BLOCK_CHANNELS=64,
        BLOCK_PLACES=64,
        BLOCK_K=32,
    )

    n_rows = n_batch * n_out * out_depth * out_height
    b = torch.empty_like(a)
    layer_norm_kernel[(triton.cdiv(n_rows, 64),)](
        a,
        layer_norm_weight,
        layer_norm_bias,
        b,
        n_rows,
        out_width,
        BLOCK_ROWS=64,
        BLOCK_COLUMNS=triton.next_power_of_2(out_width),
    )

    y = torch.empty_like(b)
    gelu_scale_kernel[(triton.cdiv(b.numel(), 4096),)](b, y, b.numel(), 1.0, BLOCK=4096)
    return y
