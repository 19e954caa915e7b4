import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(a_ptr, p_ptr, n_ptr, parts_ptr, n_columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * n_columns
    columns = tl.arange(0, BLOCK)
    near = tl.zeros((BLOCK,), tl.float32)
    far = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        offsets = start_of_row + start + columns
        a = tl.load(a_ptr + offsets, mask=mask, other=0.0)
        to_p = a - tl.load(p_ptr + offsets, mask=mask, other=0.0) + 1e-6
        to_n = a - tl.load(n_ptr + offsets, mask=mask, other=0.0) + 1e-6
        near += tl.where(mask, to_p * to_p, 0.0)
        far += tl.where(mask, to_n * to_n, 0.0)
    loss = tl.sqrt(tl.sum(near, axis=0)) - tl.sqrt(tl.sum(far, axis=0)) + 1.0
    tl.store(parts_ptr + tl.program_id(0), tl.maximum(loss, 0.0))


@triton.jit
def mean_kernel(parts_ptr, y_ptr, n_parts, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_parts, BLOCK):
        sums += tl.load(parts_ptr + start + offsets, mask=start + offsets < n_parts, other=0.0)
    tl.store(y_ptr, tl.sum(sums, axis=0) / n_parts)


def entry(anchor, positive, negative):
    n_rows, n_columns = anchor.shape
    parts = torch.empty((n_rows,), dtype=torch.float32, device=anchor.device)
    y = torch.empty((), dtype=anchor.dtype, device=anchor.device)
    rows_kernel[(n_rows,)](anchor, positive, negative, parts, n_columns, BLOCK=1024)
    mean_kernel[(1,)](parts, y, n_rows, BLOCK=1024)
    return y
