import torch
import triton
import triton.language as tl


@triton.jit
def reduction_kernel(x_ptr, y_ptr, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Over the middle dimension of a batch of matrices."""
    batch = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]

    found = tl.full((ROWS, COLUMNS), START, tl.float32)
    for start in range(0, n_rows, ROWS):
        mask = (start + rows < n_rows) & (columns < n_columns)
        offsets = (batch * n_rows + start + rows) * n_columns + columns
        x = tl.load(x_ptr + offsets, mask=mask, other=START)
        found = STEP
    y = FINISH

    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(y_ptr + batch * n_columns + columns, y, mask=columns < n_columns)


def entry(x):
    batch, n_rows, n_columns = x.shape
    y = torch.empty(SHAPE, dtype=x.dtype, device=x.device)
    reduction_kernel[(batch, triton.cdiv(n_columns, 64))](x, y, n_rows, n_columns, ROWS=16, COLUMNS=64)
    return y
