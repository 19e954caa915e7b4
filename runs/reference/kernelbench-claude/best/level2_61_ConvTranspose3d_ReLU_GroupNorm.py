import torch
import triton
import triton.language as tl


@triton.jit
def prep_x_kernel(x, xh, xl, R, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
                  P: tl.constexpr, HW: tl.constexpr, WO: tl.constexpr, LEAD: tl.constexpr,
                  CP: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    q = r - LEAD
    n = q // P
    p = q - n * P
    d = p // HW
    e = p - d * HW
    h = e // WO
    w = e - h * WO
    ok = (q >= 0) & (r < R) & (d < D) & (h < H) & (w < W)
    off = n * (C * D * H * W) + d * (H * W) + h * W + w
    v = tl.load(x + c[:, None] * (D * H * W) + off[None, :],
                mask=(c < C)[:, None] & ok[None, :], other=0.0)
    v = tl.trans(v)
    hi = v.to(tl.bfloat16)
    lo = (v - hi.to(tl.float32)).to(tl.bfloat16)
    o = r[:, None] * CP + c[None, :]
    m = (r < R)[:, None] & (c < CP)[None, :]
    tl.store(xh + o, hi, mask=m)
    tl.store(xl + o, lo, mask=m)


@triton.jit
def prep_w_kernel(w, wh, wl, C: tl.constexpr, CO: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < 27 * CO * CP
    ci = i % CP
    j = i // CP
    co = j % CO
    tap = j // CO
    v = tl.load(w + (ci * CO + co) * 27 + tap, mask=m & (ci < C), other=0.0)
    hi = v.to(tl.bfloat16)
    lo = (v - hi.to(tl.float32)).to(tl.bfloat16)
    tl.store(wh + i, hi, mask=m)
    tl.store(wl + i, lo, mask=m)


@triton.autotune(
    configs=[
        triton.Config({"BK": 64}, num_warps=8, num_stages=2),
        triton.Config({"BK": 32}, num_warps=8, num_stages=3),
        triton.Config({"BK": 32}, num_warps=8, num_stages=4),
    ],
    key=["P"],
)
@triton.jit
def conv_kernel(xh, xl, wh, wl, out, ps, pq, R, P: tl.constexpr, HW: tl.constexpr, WO: tl.constexpr,
                LEAD: tl.constexpr, T: tl.constexpr, CO: tl.constexpr, CP: tl.constexpr,
                BP: tl.constexpr, BK: tl.constexpr):
    # Backward: the rows that were prepared last are still in L2.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    n = tile // T
    t = tile % T
    p0 = t * BP
    row0 = LEAD + n * P + p0
    xhd = tl.make_tensor_descriptor(xh, shape=[R, CP], strides=[CP, 1], block_shape=[BP, BK])
    xld = tl.make_tensor_descriptor(xl, shape=[R, CP], strides=[CP, 1], block_shape=[BP, BK])
    whd = tl.make_tensor_descriptor(wh, shape=[27 * CO, CP], strides=[CP, 1], block_shape=[CO, BK])
    wld = tl.make_tensor_descriptor(wl, shape=[27 * CO, CP], strides=[CP, 1], block_shape=[CO, BK])
    KC: tl.constexpr = CP // BK
    acc = tl.zeros((CO, BP), tl.float32)
    for it in range(27 * KC):
        tap = it // KC
        kc = (it % KC) * BK
        kd = tap // 9
        kh = (tap // 3) % 3
        kw = tap % 3
        r = row0 - kd * HW - kh * WO - kw
        ah = whd.load([tap * CO, kc])
        bh = xhd.load([r, kc])
        al = wld.load([tap * CO, kc])
        bl = xld.load([r, kc])
        acc = tl.dot(al, bh.T, acc)
        acc = tl.dot(ah, bl.T, acc)
        acc = tl.dot(ah, bh.T, acc)
    co = tl.arange(0, CO)
    rows = (n * CO + co) * P
    p = p0 + tl.arange(0, BP)
    m = p < P
    v = tl.where(m[None, :], tl.maximum(acc, 0.0), 0.0)
    s = tl.sum(v, 1)
    q = tl.sum(v * v, 1)
    tl.store(ps + tile * CO + co, s)
    tl.store(pq + tile * CO + co, q)
    tl.store(out + rows[:, None] + p[None, :], v, mask=m[None, :])


@triton.jit
def stats_kernel(ps, pq, mean_p, rstd_p, P: tl.constexpr, T: tl.constexpr, CO: tl.constexpr,
                 G: tl.constexpr, CPG: tl.constexpr, BT: tl.constexpr):
    pid = tl.program_id(0)
    n = pid // G
    g = pid % G
    c = g * CPG + tl.arange(0, CPG)
    s = tl.zeros((BT, CPG), tl.float64)
    q = tl.zeros((BT, CPG), tl.float64)
    for t0 in range(0, T, BT):
        t = t0 + tl.arange(0, BT)
        o = (n * T + t)[:, None] * CO + c[None, :]
        m = (t < T)[:, None] & (c < CO)[None, :]
        s += tl.load(ps + o, mask=m, other=0.0).to(tl.float64)
        q += tl.load(pq + o, mask=m, other=0.0).to(tl.float64)
    mean = tl.sum(tl.sum(s, 1), 0) / (CPG * P)
    var = tl.sum(tl.sum(q, 1), 0) / (CPG * P) - mean * mean
    var = tl.where(var > 0.0, var, 0.0)
    rstd = 1.0 / tl.sqrt(var + 1e-5)
    tl.store(mean_p + pid, mean.to(tl.float32))
    tl.store(rstd_p + pid, rstd.to(tl.float32))


@triton.jit
def apply_kernel(out, mean_p, rstd_p, gamma, beta, P: tl.constexpr, CO: tl.constexpr,
                 CPG: tl.constexpr, NCH: tl.constexpr, BLOCK: tl.constexpr):
    # Forward: the convolution ended with the first images, which are still in L2.
    pid = tl.program_id(0)
    row = pid // NCH
    ch = pid % NCH
    mean = tl.load(mean_p + row // CPG)
    rstd = tl.load(rstd_p + row // CPG)
    a = tl.load(gamma + row % CO) * rstd
    b = tl.load(beta + row % CO)
    p = ch * BLOCK + tl.arange(0, BLOCK)
    m = p < P
    ptr = out + row * P + p
    v = tl.load(ptr, mask=m, other=0.0, eviction_policy="evict_first")
    tl.store(ptr, (v - mean) * a + b, mask=m, eviction_policy="evict_first")


def entry(x, conv_transpose_weight, group_norm_weight, group_norm_bias):
    N, C, D, H, W = x.shape
    CO = conv_transpose_weight.shape[1]
    G = 8
    CPG = CO // G
    DO = D + 2
    HO = H + 2
    WO = W + 2
    HW = HO * WO
    P = DO * HW
    LEAD = 2 * HW + 2 * WO + 2
    R = LEAD + N * P
    CP = triton.cdiv(C, 64) * 64
    BP = 256
    T = triton.cdiv(P, BP)
    dev = x.device
    xh = torch.empty((R, CP), device=dev, dtype=torch.bfloat16)
    xl = torch.empty((R, CP), device=dev, dtype=torch.bfloat16)
    wh = torch.empty((27 * CO, CP), device=dev, dtype=torch.bfloat16)
    wl = torch.empty((27 * CO, CP), device=dev, dtype=torch.bfloat16)
    ps = torch.empty((N * T, CO), device=dev, dtype=torch.float32)
    pq = torch.empty((N * T, CO), device=dev, dtype=torch.float32)
    mean = torch.empty((N * G,), device=dev, dtype=torch.float32)
    rstd = torch.empty((N * G,), device=dev, dtype=torch.float32)
    out = torch.empty((N, CO, DO, HO, WO), device=dev, dtype=torch.float32)

    prep_w_kernel[(triton.cdiv(27 * CO * CP, 512),)](conv_transpose_weight, wh, wl, C, CO, CP, 512, num_warps=4)
    prep_x_kernel[(triton.cdiv(R, 64), CP // 64)](x, xh, xl, R, C, D, H, W, P, HW, WO, LEAD, CP, 64, 64,
                                                  num_warps=4)
    conv_kernel[(N * T,)](xh, xl, wh, wl, out, ps, pq, R, P, HW, WO, LEAD, T, CO, CP, BP)
    stats_kernel[(N * G,)](ps, pq, mean, rstd, P, T, CO, G, CPG, 64, num_warps=4)
    NCH = triton.cdiv(P, 4096)
    apply_kernel[(N * CO * NCH,)](out, mean, rstd, group_norm_weight, group_norm_bias, P, CO, CPG, NCH, 4096,
                                  num_warps=8)
    return out
