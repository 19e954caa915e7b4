import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(
    x_ptr,
    y_ptr,
    n_rows,
    stride_x,
    stride_y,
    n_cols,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_SIZE)
    x_ptrs = x_ptr + rows[:, None] * stride_x + columns[None, :]
    y_ptrs = y_ptr + rows[:, None] * stride_y + columns[None, :]
    if EVEN:
        x = tl.load(x_ptrs, eviction_policy="evict_first")
    else:
        mask = (rows < n_rows)[:, None] & (columns < n_cols)[None, :]
        x = tl.load(x_ptrs, mask=mask, other=-float("inf"), eviction_policy="evict_first")
    largest = tl.max(x, axis=1)
    e = tl.exp(x - largest[:, None])
    total = tl.sum(e, axis=1)
    inverse = 1.0 / total
    y = e * inverse[:, None]
    if EVEN:
        tl.store(y_ptrs, y)
    else:
        tl.store(y_ptrs, y, mask=mask)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    block = max(128, triton.next_power_of_2(n_cols))
    if block <= 1024:
        num_warps, rows = 1, 2 if block <= 512 else 1
    elif block <= 2048:
        num_warps, rows = 4, 1
    elif block <= 4096:
        num_warps, rows = 8, 1
    elif block <= 16384:
        num_warps, rows = 16, 1
    else:
        num_warps, rows = 32, 1
    even = block == n_cols and n_rows % rows == 0
    grid = (triton.cdiv(n_rows, rows),)
    softmax_kernel[grid](
        x,
        y,
        n_rows,
        x.stride(0),
        y.stride(0),
        n_cols,
        ROWS=rows,
        BLOCK_SIZE=block,
        EVEN=even,
        num_warps=num_warps,
    )
    return y
