import torch
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * n_columns
    columns = tl.arange(0, BLOCK)
    before = NEUTRAL
    for start in range(0, n_columns, BLOCK):
        places = PLACES
        mask = (places >= 0) & (places < n_columns)
        x = tl.load(x_ptr + start_of_row + places, mask=mask, other=NEUTRAL)
        tl.store(y_ptr + start_of_row + places, SCANNED, mask=mask)
        before = NEXT


def entry(x):
    n_rows, n_columns = x.shape
    y = torch.empty_like(x)
    scan_kernel[(n_rows,)](x, y, n_columns, BLOCK=1024)
    return y
