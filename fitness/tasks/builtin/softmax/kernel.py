import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    x_row = x_ptr + row * stride
    y_row = y_ptr + row * stride
    columns = tl.arange(0, BLOCK_SIZE)

    largest = -float("inf")
    for start in range(0, n_cols, BLOCK_SIZE):
        x = tl.load(x_row + start + columns, mask=start + columns < n_cols, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(x, axis=0))

    total = 0.0
    for start in range(0, n_cols, BLOCK_SIZE):
        x = tl.load(x_row + start + columns, mask=start + columns < n_cols, other=-float("inf"))
        total += tl.sum(tl.exp(x - largest), axis=0)

    for start in range(0, n_cols, BLOCK_SIZE):
        mask = start + columns < n_cols
        x = tl.load(x_row + start + columns, mask=mask, other=0.0)
        tl.store(y_row + start + columns, tl.exp(x - largest) / total, mask=mask)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](x, y, x.stride(0), n_cols, BLOCK_SIZE=128, num_warps=8)
    return y
