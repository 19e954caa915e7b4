import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BK": 64, "BR": 64, "DEPTH": 4}, num_warps=8),
        triton.Config({"BK": 64, "BR": 64, "DEPTH": 6}, num_warps=4),
        triton.Config({"BK": 64, "BR": 64, "DEPTH": 6}, num_warps=8),
        triton.Config({"BK": 64, "BR": 64, "DEPTH": 8}, num_warps=8),
        triton.Config({"BK": 64, "BR": 64, "DEPTH": 12}, num_warps=8),
        triton.Config({"BK": 64, "BR": 32, "DEPTH": 8}, num_warps=4),
        triton.Config({"BK": 64, "BR": 32, "DEPTH": 12}, num_warps=4),
        triton.Config({"BK": 64, "BR": 128, "DEPTH": 3}, num_warps=8),
        triton.Config({"BK": 64, "BR": 128, "DEPTH": 4}, num_warps=8),
        triton.Config({"BK": 64, "BR": 128, "DEPTH": 6}, num_warps=8),
        triton.Config({"BK": 64, "BR": 128, "DEPTH": 5}, num_warps=16),
        triton.Config({"BK": 64, "BR": 256, "DEPTH": 3}, num_warps=16),
        triton.Config({"BK": 32, "BR": 64, "DEPTH": 8}, num_warps=4),
        triton.Config({"BK": 32, "BR": 128, "DEPTH": 4}, num_warps=4),
        triton.Config({"BK": 32, "BR": 128, "DEPTH": 6}, num_warps=4),
        triton.Config({"BK": 32, "BR": 128, "DEPTH": 6}, num_warps=8),
        triton.Config({"BK": 32, "BR": 256, "DEPTH": 3}, num_warps=8),
        triton.Config({"BK": 64, "BR": 256, "DEPTH": 1}, num_warps=16),
        triton.Config({"BK": 64, "BR": 512, "DEPTH": 1}, num_warps=32),
        triton.Config({"BK": 32, "BR": 256, "DEPTH": 1}, num_warps=8),
        triton.Config({"BK": 32, "BR": 512, "DEPTH": 1}, num_warps=16),
    ],
    key=["N", "K"],
)
@triton.jit
def column_sums(w, bias, s, total, N, K,
                NB: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, DEPTH: tl.constexpr):
    pid = tl.program_id(0)
    if pid == 0:
        b = tl.zeros([NB], tl.float32)
        for n in range(0, N, NB):
            o = n + tl.arange(0, NB)
            b += tl.load(bias + o, mask=o < N, other=0.0)
        tl.store(total, tl.sum(b, 0))
    else:
        cols = (pid - 1) * BK + tl.arange(0, BK)
        mc = cols < K
        acc = tl.zeros([BR, BK], tl.float32)
        for r in tl.range(0, N, BR, num_stages=DEPTH):
            rows = r + tl.arange(0, BR)
            mr = rows < N
            acc += tl.load(w + rows[:, None] * K + cols[None, :],
                           mask=mr[:, None] & mc[None, :], other=0.0)
        tl.store(s + cols, tl.sum(acc, 0), mask=mc)


@triton.autotune(
    configs=[
        triton.Config({"BM": 2, "BC": 1024, "DEPTH": 4}, num_warps=4),
        triton.Config({"BM": 2, "BC": 2048, "DEPTH": 3}, num_warps=8),
        triton.Config({"BM": 2, "BC": 2048, "DEPTH": 2}, num_warps=4),
        triton.Config({"BM": 4, "BC": 512, "DEPTH": 6}, num_warps=4),
        triton.Config({"BM": 4, "BC": 1024, "DEPTH": 4}, num_warps=8),
        triton.Config({"BM": 4, "BC": 1024, "DEPTH": 5}, num_warps=4),
        triton.Config({"BM": 4, "BC": 1024, "DEPTH": 5}, num_warps=8),
        triton.Config({"BM": 8, "BC": 512, "DEPTH": 6}, num_warps=8),
        triton.Config({"BM": 8, "BC": 512, "DEPTH": 10}, num_warps=8),
        triton.Config({"BM": 8, "BC": 1024, "DEPTH": 4}, num_warps=8),
        triton.Config({"BM": 8, "BC": 1024, "DEPTH": 6}, num_warps=8),
        triton.Config({"BM": 2, "BC": 2048, "DEPTH": 1}, num_warps=4),
        triton.Config({"BM": 2, "BC": 2048, "DEPTH": 1}, num_warps=8),
        triton.Config({"BM": 2, "BC": 4096, "DEPTH": 1}, num_warps=8),
        triton.Config({"BM": 2, "BC": 8192, "DEPTH": 1}, num_warps=16),
        triton.Config({"BM": 4, "BC": 2048, "DEPTH": 1}, num_warps=8),
        triton.Config({"BM": 4, "BC": 4096, "DEPTH": 1}, num_warps=16),
    ],
    key=["M", "K"],
)
@triton.jit
def row_dots(x, s, total, out, M, K,
             BM: tl.constexpr, BC: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    mr = rows < M
    b = tl.load(total)
    acc = tl.zeros([BM, BC], tl.float32)
    for k in tl.range(0, K, BC, num_stages=DEPTH):
        ks = k + tl.arange(0, BC)
        mk = ks < K
        v = tl.load(x + rows[:, None] * K + ks[None, :],
                    mask=mr[:, None] & mk[None, :], other=0.0)
        sv = tl.load(s + ks, mask=mk, other=0.0)
        acc += v * sv[None, :]
    tl.store(out + rows, tl.sum(acc, 1) + b, mask=mr)


def entry(x, linear_weight, linear_bias):
    M, K = x.shape
    N = linear_weight.shape[0]
    s = torch.empty((K,), device=x.device, dtype=torch.float32)
    total = torch.empty((1,), device=x.device, dtype=torch.float32)
    out = torch.empty((M, 1), device=x.device, dtype=torch.float32)
    column_sums[lambda meta: (triton.cdiv(K, meta["BK"]) + 1,)](
        linear_weight, linear_bias, s, total, N, K, NB=1024)
    row_dots[lambda meta: (triton.cdiv(M, meta["BM"]),)](
        x, s, total, out, M, K)
    return out
