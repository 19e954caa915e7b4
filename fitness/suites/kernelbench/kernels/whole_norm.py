import torch
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(x * x, axis=0))


@triton.jit
def total_kernel(parts_ptr, total_ptr, n_parts, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_parts, BLOCK):
        sums += tl.load(parts_ptr + start + offsets, mask=start + offsets < n_parts, other=0.0)
    tl.store(total_ptr, tl.sum(sums, axis=0))


@triton.jit
def divide_kernel(x_ptr, total_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    norm = tl.sqrt(tl.load(total_ptr))
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) / norm, mask=mask)


def entry(x):
    n = x.numel()
    n_parts = triton.cdiv(n, 4096)
    y = torch.empty_like(x)
    parts = torch.empty((n_parts,), dtype=torch.float32, device=x.device)
    total = torch.empty((1,), dtype=torch.float32, device=x.device)
    squares_kernel[(n_parts,)](x, parts, n, BLOCK=4096)
    total_kernel[(1,)](parts, total, n_parts, BLOCK=1024)
    divide_kernel[(triton.cdiv(n, 1024),)](x, total, y, n, BLOCK=1024)
    return y
