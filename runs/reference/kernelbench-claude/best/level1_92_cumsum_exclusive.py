import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        # one warp a row
        triton.Config({"S": 1, "C": 512, "STAGES": 1, "PREFETCH": 0}, num_warps=1),
        triton.Config({"S": 1, "C": 1024, "STAGES": 1, "PREFETCH": 0}, num_warps=1),
        triton.Config({"S": 1, "C": 2048, "STAGES": 1, "PREFETCH": 0}, num_warps=1),
        triton.Config({"S": 1, "C": 512, "STAGES": 1, "PREFETCH": 1}, num_warps=1),
        triton.Config({"S": 1, "C": 1024, "STAGES": 1, "PREFETCH": 1}, num_warps=1),
        triton.Config({"S": 1, "C": 512, "STAGES": 4, "PREFETCH": 0}, num_warps=1),
        triton.Config({"S": 1, "C": 1024, "STAGES": 2, "PREFETCH": 0}, num_warps=1),
        triton.Config({"S": 1, "C": 1024, "STAGES": 3, "PREFETCH": 0}, num_warps=1),
        # several warps a row, scanned as one piece
        triton.Config({"S": 1, "C": 1024, "STAGES": 1, "PREFETCH": 0}, num_warps=2),
        triton.Config({"S": 1, "C": 2048, "STAGES": 1, "PREFETCH": 0}, num_warps=2),
        triton.Config({"S": 1, "C": 2048, "STAGES": 1, "PREFETCH": 1}, num_warps=4),
        triton.Config({"S": 1, "C": 4096, "STAGES": 1, "PREFETCH": 0}, num_warps=4),
        # several warps a row, segments within a warp
        triton.Config({"S": 16, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=2),
        triton.Config({"S": 16, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=4),
        triton.Config({"S": 16, "C": 128, "STAGES": 1, "PREFETCH": 1}, num_warps=4),
        triton.Config({"S": 16, "C": 128, "STAGES": 3, "PREFETCH": 0}, num_warps=4),
        triton.Config({"S": 32, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=4),
        triton.Config({"S": 32, "C": 128, "STAGES": 2, "PREFETCH": 0}, num_warps=4),
        triton.Config({"S": 32, "C": 128, "STAGES": 3, "PREFETCH": 0}, num_warps=4),
        triton.Config({"S": 32, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=8),
        triton.Config({"S": 32, "C": 128, "STAGES": 1, "PREFETCH": 1}, num_warps=8),
        triton.Config({"S": 32, "C": 128, "STAGES": 3, "PREFETCH": 0}, num_warps=8),
        triton.Config({"S": 64, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=8),
        triton.Config({"S": 64, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=16),
        triton.Config({"S": 64, "C": 128, "STAGES": 2, "PREFETCH": 0}, num_warps=16),
        # the whole row in registers
        triton.Config({"S": 128, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=16),
        triton.Config({"S": 128, "C": 128, "STAGES": 1, "PREFETCH": 0}, num_warps=32),
    ],
    key=["N"],
)
@triton.jit
def fused_exclusive_scan_kernel(x_ptr, y_ptr, N: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
                                STAGES: tl.constexpr, PREFETCH: tl.constexpr):
    BLOCK: tl.constexpr = S * C
    EVEN: tl.constexpr = (N % (S * C)) == 0
    base = tl.program_id(0).to(tl.int64) * N
    x_row = x_ptr + base
    y_row = y_ptr + base
    if S == 1:
        cols = tl.arange(0, C)
    else:
        seg = tl.arange(0, S)
        cols = seg[:, None] * C + tl.arange(0, C)[None, :]
        before = tl.arange(0, S)[None, :] < seg[:, None]
    carry = 0.0
    if PREFETCH == 1:
        ahead = tl.load(x_row + cols, mask=cols < N, other=0.0, eviction_policy="evict_first")
    for start in tl.range(0, N, BLOCK, num_stages=STAGES):
        offs = start + cols
        if PREFETCH == 1:
            x = ahead
            later = offs + BLOCK
            ahead = tl.load(x_row + later, mask=later < N, other=0.0, eviction_policy="evict_first")
        else:
            if EVEN:
                x = tl.load(x_row + offs, eviction_policy="evict_first")
            else:
                x = tl.load(x_row + offs, mask=offs < N, other=0.0)
        if S == 1:
            y = (tl.cumsum(x, 0) - x) + carry
            total = tl.sum(x, 0)
        else:
            # first kernel: totals of the segments and their exclusive prefixes
            totals = tl.sum(x, 1)
            first = tl.sum(tl.where(before, totals[None, :], 0.0), 1) + carry
            total = tl.sum(totals, 0)
            # second kernel: scan inside the segments, from where each begins
            y = (tl.cumsum(x, 1) - x) + first[:, None]
        if EVEN:
            tl.store(y_row + offs, y, eviction_policy="evict_first")
        else:
            tl.store(y_row + offs, y, mask=offs < N)
        carry += total


def entry(x):
    m, n = x.shape
    y = torch.empty_like(x)
    fused_exclusive_scan_kernel[(m,)](x, y, n)
    return y
