import torch
import triton
import triton.language as tl


@triton.jit
def terms_kernel(p_ptr, t_ptr, parts_ptr, n, n_columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    p = tl.load(p_ptr + offsets, mask=mask, other=1.0)
    t = tl.load(t_ptr + TARGET, mask=mask, other=1.0)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(tl.where(mask, TERM, 0.0), axis=0))


@triton.jit
def mean_kernel(parts_ptr, y_ptr, n_parts, divisor, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_parts, BLOCK):
        sums += tl.load(parts_ptr + start + offsets, mask=start + offsets < n_parts, other=0.0)
    tl.store(y_ptr, tl.sum(sums, axis=0) / divisor)


def entry(predictions, targets):
    n_rows, n_columns = predictions.shape
    n = n_rows * n_columns
    n_parts = triton.cdiv(n, 2048)
    parts = torch.empty((n_parts,), dtype=torch.float32, device=predictions.device)
    y = torch.empty((), dtype=predictions.dtype, device=predictions.device)
    terms_kernel[(n_parts,)](predictions, targets, parts, n, n_columns, BLOCK=2048)
    mean_kernel[(1,)](parts, y, n_parts, DIVISOR, BLOCK=1024)
    return y
