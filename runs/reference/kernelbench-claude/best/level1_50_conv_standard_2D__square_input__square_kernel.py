import torch
import triton
import triton.language as tl


@triton.jit
def split_weight_kernel(w_ptr, wh_ptr, wl_ptr, total, BLOCK: tl.constexpr):
    # rows k = (c * 11 + ky) * 12 + kx, columns = output channels padded to 128, zeros elsewhere
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = i // 128
    co = i % 128
    row = k // 12
    kx = k % 12
    ok = (k < 396) & (kx < 11) & (co < 96)
    v = tl.load(w_ptr + co * 363 + row * 11 + kx, mask=ok, other=0.0)
    hi = v.to(tl.bfloat16)
    lo = (v - hi.to(tl.float32)).to(tl.bfloat16)
    inside = i < total
    tl.store(wh_ptr + i, hi, mask=inside)
    tl.store(wl_ptr + i, lo, mask=inside)


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BK": 32, "OCC": 2}, num_warps=4, num_stages=2),
        triton.Config({"BM": 128, "BK": 32, "OCC": 2}, num_warps=4, num_stages=3),
        triton.Config({"BM": 128, "BK": 32, "OCC": 2}, num_warps=4, num_stages=4),
        triton.Config({"BM": 128, "BK": 16, "OCC": 2}, num_warps=4, num_stages=4),
        triton.Config({"BM": 128, "BK": 64, "OCC": 2}, num_warps=4, num_stages=2),
        triton.Config({"BM": 128, "BK": 32, "OCC": 3}, num_warps=4, num_stages=2),
        triton.Config({"BM": 128, "BK": 16, "OCC": 3}, num_warps=4, num_stages=3),
        triton.Config({"BM": 128, "BK": 32, "OCC": 2}, num_warps=8, num_stages=2),
        triton.Config({"BM": 128, "BK": 32, "OCC": 2}, num_warps=8, num_stages=3),
        triton.Config({"BM": 128, "BK": 16, "OCC": 2}, num_warps=8, num_stages=4),
        triton.Config({"BM": 128, "BK": 64, "OCC": 1}, num_warps=8, num_stages=2),
        triton.Config({"BM": 128, "BK": 64, "OCC": 1}, num_warps=8, num_stages=3),
        triton.Config({"BM": 256, "BK": 32, "OCC": 1}, num_warps=8, num_stages=2),
        triton.Config({"BM": 256, "BK": 32, "OCC": 1}, num_warps=8, num_stages=3),
        triton.Config({"BM": 256, "BK": 32, "OCC": 1}, num_warps=8, num_stages=4),
        triton.Config({"BM": 256, "BK": 16, "OCC": 1}, num_warps=8, num_stages=4),
        triton.Config({"BM": 256, "BK": 16, "OCC": 1}, num_warps=8, num_stages=6),
        triton.Config({"BM": 64, "BK": 32, "OCC": 4}, num_warps=4, num_stages=2),
        triton.Config({"BM": 64, "BK": 32, "OCC": 3}, num_warps=4, num_stages=3),
        triton.Config({"BM": 64, "BK": 64, "OCC": 3}, num_warps=4, num_stages=2),
    ],
    key=["n_pos"],
)
@triton.jit
def conv_kernel(
    x_ptr, wh_ptr, wl_ptr, b_ptr, o_ptr, n_pos,
    BM: tl.constexpr, BK: tl.constexpr, OCC: tl.constexpr,
):
    # a persistent program computes a contiguous run of tiles, all 96 channels of each
    pid = tl.program_id(0)
    n_prog = tl.num_programs(0)
    n_tiles = (n_pos + BM - 1) // BM
    first = pid * n_tiles // n_prog
    last = (pid + 1) * n_tiles // n_prog

    mm = tl.arange(0, BM)
    kk = tl.arange(0, BK)
    c0 = tl.arange(0, 64)
    c1 = 64 + tl.arange(0, 32)

    for tile in range(first, last):
        m = tile * BM + mm
        mc = tl.minimum(m, n_pos - 1)
        n = mc // 3025
        r = mc - n * 3025
        oy = r // 55
        ox = r - oy * 55
        iy0 = oy * 4 - 2
        ix0 = ox * 4 - 2
        off_m = n * 150528 + iy0 * 224 + ix0

        acc0 = tl.zeros((BM, 64), tl.float32)
        acc1 = tl.zeros((BM, 32), tl.float32)
        for k0 in range(0, 396, BK):
            k = k0 + kk
            row = k // 12
            kx = k % 12
            c = row // 11
            ky = row % 11
            iy = iy0[:, None] + ky[None, :]
            ix = ix0[:, None] + kx[None, :]
            ok = (iy >= 0) & (iy < 224) & (ix >= 0) & (ix < 224) & (k < 396)[None, :]
            koff = c * 50176 + ky * 224 + kx
            a = tl.load(x_ptr + (off_m[:, None] + koff[None, :]), mask=ok, other=0.0)
            hi = a.to(tl.bfloat16)
            lo = (a - hi.to(tl.float32)).to(tl.bfloat16)

            w0 = k[:, None] * 128 + c0[None, :]
            w1 = k[:, None] * 128 + c1[None, :]
            bh0 = tl.load(wh_ptr + w0)
            bh1 = tl.load(wh_ptr + w1)
            bl0 = tl.load(wl_ptr + w0)
            bl1 = tl.load(wl_ptr + w1)
            acc0 = tl.dot(hi, bh0, acc0)
            acc1 = tl.dot(hi, bh1, acc1)
            acc0 = tl.dot(hi, bl0, acc0)
            acc1 = tl.dot(hi, bl1, acc1)
            acc0 = tl.dot(lo, bh0, acc0)
            acc1 = tl.dot(lo, bh1, acc1)

        # The hint only makes the store run along positions: 3025 is odd, so stores are single
        # elements, and the jump between two images is harmless.
        so = tl.max_contiguous(n * 290400 + r, BM)
        inside = m < n_pos
        bias0 = tl.load(b_ptr + c0)
        bias1 = tl.load(b_ptr + c1)
        tl.store(
            o_ptr + (so[:, None] + c0[None, :] * 3025), acc0 + bias0[None, :],
            mask=inside[:, None], cache_modifier=".cs",
        )
        tl.store(
            o_ptr + (so[:, None] + c1[None, :] * 3025), acc1 + bias1[None, :],
            mask=inside[:, None], cache_modifier=".cs",
        )


def entry(x, conv1_weight, conv1_bias):
    n = x.shape[0]
    rows = 448
    wh = torch.empty((rows, 128), dtype=torch.bfloat16, device=x.device)
    wl = torch.empty((rows, 128), dtype=torch.bfloat16, device=x.device)
    out = torch.empty((n, 96, 55, 55), dtype=torch.float32, device=x.device)
    total = rows * 128
    split_weight_kernel[(triton.cdiv(total, 512),)](conv1_weight, wh, wl, total, BLOCK=512, num_warps=4)
    n_pos = n * 3025
    n_sm = torch.cuda.get_device_properties(x.device).multi_processor_count
    grid = lambda meta: (min(n_sm * meta["OCC"], triton.cdiv(n_pos, meta["BM"])),)
    conv_kernel[grid](x, wh, wl, conv1_bias, out, n_pos)
    return out
