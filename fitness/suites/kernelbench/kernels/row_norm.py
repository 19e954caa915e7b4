import torch
import triton
import triton.language as tl


@triton.jit
def row_norm_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * n_columns
    columns = tl.arange(0, BLOCK)

    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_columns, BLOCK):
        x = tl.load(x_ptr + start_of_row + start + columns, mask=start + columns < n_columns, other=0.0)
        sums += TERM
    total = tl.sum(sums, axis=0)
    norm = NORM

    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        x = tl.load(x_ptr + start_of_row + start + columns, mask=mask)
        tl.store(y_ptr + start_of_row + start + columns, x / norm, mask=mask)


def entry(x):
    n_rows, n_columns = x.shape
    y = torch.empty_like(x)
    row_norm_kernel[(n_rows,)](x, y, n_columns, BLOCK=1024)
    return y
