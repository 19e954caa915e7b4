import torch
import triton
import triton.language as tl


@triton.jit
def matvec_kernel(a_ptr, b_ptr, c_ptr, n_columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * n_columns
    columns = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        a = tl.load(a_ptr + start_of_row + start + columns, mask=mask, other=0.0)
        sums += a * tl.load(b_ptr + start + columns, mask=mask, other=0.0)
    tl.store(c_ptr + tl.program_id(0), tl.sum(sums, axis=0))


def entry(A, B):
    n_rows, n_columns = A.shape
    c = torch.empty((n_rows, 1), dtype=A.dtype, device=A.device)
    matvec_kernel[(n_rows,)](A, B, c, n_columns, BLOCK=1024)
    return c
