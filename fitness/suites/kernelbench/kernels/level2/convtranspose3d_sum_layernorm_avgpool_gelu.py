import torch
import triton
import triton.language as tl

TRANSPOSED_3D


@triton.jit
def layer_norm_kernel(
    x_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_rows,
    n_columns,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Adds one number to all, and normalises each row."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    columns = tl.arange(0, BLOCK_COLUMNS)[None, :]
    mask = (rows < n_rows) & (columns < n_columns)
    x = tl.load(x_ptr + rows * n_columns + columns, mask=mask, other=0.0) + tl.load(shift_ptr)
    mean = tl.sum(tl.where(mask, x, 0.0), axis=1, keep_dims=True) / n_columns
    x = tl.where(mask, x - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / n_columns + 1e-5)
    weight = tl.load(weight_ptr + columns, mask=columns < n_columns, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=columns < n_columns, other=0.0)
    tl.store(y_ptr + rows * n_columns + columns, x * inverse * weight + bias, mask=mask)


@triton.jit
def pool_gelu_kernel(
    x_ptr, y_ptr, depth, height, width, out_depth, out_height, out_width, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):
    """The mean of each window, and its GELU."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = out_depth * out_height * out_width
    mask = places < inner
    d = places // (out_height * out_width) * WINDOW
    h = places // out_width % out_height * WINDOW
    w = places % out_width * WINDOW
    x_ptr += row * depth * height * width
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(WINDOW):
        for j in range(WINDOW):
            for k in range(WINDOW):
                total += tl.load(x_ptr + ((d + i) * height + h + j) * width + w + k, mask=mask, other=0.0)
    total /= WINDOW * WINDOW * WINDOW
    total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    tl.store(y_ptr + row * inner + places, total, mask=mask)


def entry(x, sum_weight, conv_transpose_weight, conv_transpose_bias, norm_weight, norm_bias):
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
        KERNEL=3,
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
        sum_weight,
        norm_weight,
        norm_bias,
        b,
        n_rows,
        out_width,
        BLOCK_ROWS=64,
        BLOCK_COLUMNS=triton.next_power_of_2(out_width),
    )

    sizes = (out_depth // 2, out_height // 2, out_width // 2)
    y = torch.empty((n_batch, n_out, *sizes), dtype=x.dtype, device=x.device)
    grid = (n_batch * n_out, triton.cdiv(sizes[0] * sizes[1] * sizes[2], 1024))
    pool_gelu_kernel[grid](b, y, out_depth, out_height, out_width, *sizes, WINDOW=2, BLOCK=1024)
    return y
