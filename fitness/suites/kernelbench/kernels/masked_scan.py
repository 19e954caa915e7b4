import torch
import triton
import triton.language as tl


@triton.jit
def masked_scan_kernel(x_ptr, mask_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * n_columns
    columns = tl.arange(0, BLOCK)
    before = 0.0
    for start in range(0, n_columns, BLOCK):
        inside = start + columns < n_columns
        x = tl.load(x_ptr + start_of_row + start + columns, mask=inside, other=0.0)
        chosen = tl.load(mask_ptr + start_of_row + start + columns, mask=inside, other=0)
        x = tl.where(chosen != 0, x, 0.0)
        tl.store(y_ptr + start_of_row + start + columns, before + tl.cumsum(x, axis=0), mask=inside)
        before += tl.sum(x, axis=0)


def entry(x, mask):
    n_rows, n_columns = x.shape
    y = torch.empty_like(x)
    masked_scan_kernel[(n_rows,)](x, mask, y, n_columns, BLOCK=1024)
    return y
