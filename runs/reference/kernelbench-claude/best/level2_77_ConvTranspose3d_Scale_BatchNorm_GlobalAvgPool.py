import torch
import triton
import triton.language as tl


@triton.jit
def put(p, o, v, ok, ax, L: tl.constexpr):
    hi = v.to(tl.bfloat16)
    lo = (v - hi.to(tl.float32)).to(tl.bfloat16)
    tl.store(p + o, hi, mask=ok)
    tl.store(p + L + o, lo, mask=ax)


@triton.jit
def x_kernel(x, xs, sp, CI: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIP: tl.constexpr,
             R: tl.constexpr, LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr, FW: tl.constexpr,
             DP: tl.constexpr, WP: tl.constexpr, FDP: tl.constexpr, FWP: tl.constexpr, CB: tl.constexpr,
             XL: tl.constexpr):
    # DFT over width and depth of 16 channels of one (n, h); rows h >= H are zeros
    pid = tl.program_id(0)
    NCB: tl.constexpr = CIP // CB
    cb = pid % NCB
    row = pid // NCB
    h = row % LH
    n = row // LH
    r = tl.arange(0, CB * DP)
    ci = cb * CB + r // DP
    d = r % DP
    w = tl.arange(0, WP)
    m = ((ci < CI) & (d < D) & (h < H))[:, None] & (w < W)[None, :]
    off = ((n * CI + ci) * D + d) * (H * W) + h * W
    v = tl.load(x + off[:, None] + w[None, :], mask=m, other=0.0)
    sums = tl.sum(tl.reshape(tl.sum(v, axis=1), (CB, DP)), axis=1)
    tl.store(sp + row * CIP + cb * CB + tl.arange(0, CB), sums)
    fw = tl.arange(0, FWP)
    tw = ((w[:, None] * fw[None, :]) % LW).to(tl.float32) * (6.283185307179586 / LW)
    ar = tl.dot(v, tl.cos(tw), input_precision="tf32x3")
    ai = tl.dot(v, -tl.sin(tw), input_precision="tf32x3")
    br = tl.reshape(tl.permute(tl.reshape(ar, (CB, DP, FWP)), (1, 2, 0)), (DP, FWP * CB))
    bi = tl.reshape(tl.permute(tl.reshape(ai, (CB, DP, FWP)), (1, 2, 0)), (DP, FWP * CB))
    q = tl.arange(0, FWP * CB)
    qf = q // CB
    qo = (qf * (2 * R) + row) * CIP + cb * CB + q % CB
    kd = tl.arange(0, DP)
    for g in tl.static_range(0, FDP, 16):
        fd = g + tl.arange(0, 16)
        td = ((fd[:, None] * kd[None, :]) % LD).to(tl.float32) * (6.283185307179586 / LD)
        cd = tl.cos(td)
        sd = tl.sin(td)
        yr = tl.dot(cd, br, input_precision="tf32x3")
        yr = tl.dot(sd, bi, yr, input_precision="tf32x3")
        yi = tl.dot(cd, bi, input_precision="tf32x3")
        yi = tl.dot(-sd, br, yi, input_precision="tf32x3")
        o = (fd * (FW * 2 * R * CIP))[:, None] + qo[None, :]
        ok = (fd < LD)[:, None] & (qf < FW)[None, :]
        ax = ok & ((fd == 0)[:, None] | (qf == 0)[None, :])
        put(xs, o, yr, ok, ax, XL)
        put(xs + R * CIP, o, yi, ok, ax, XL)


@triton.jit
def w_kernel(w, ws, CI: tl.constexpr, CO: tl.constexpr, CIP: tl.constexpr, LD: tl.constexpr, LW: tl.constexpr,
             FW: tl.constexpr, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, KP: tl.constexpr,
             FB: tl.constexpr, CG: tl.constexpr, WL: tl.constexpr):
    pid = tl.program_id(0)
    NCG: tl.constexpr = CO // CG
    NF: tl.constexpr = LD * FW
    cg = pid % NCG
    kh = (pid // NCG) % KH
    fb = pid // (NCG * KH)
    k = tl.arange(0, KP)
    kd = k // KW
    kw = k % KW
    f = fb * FB + tl.arange(0, FB)
    fd = f // FW
    fw = f % FW
    t = ((kd[:, None] * fd[None, :]) % LD).to(tl.float32) * (6.283185307179586 / LD)
    t += ((kw[:, None] * fw[None, :]) % LW).to(tl.float32) * (6.283185307179586 / LW)
    ec = tl.cos(t)
    es = -tl.sin(t)
    ci = tl.arange(0, CIP)
    m = (ci < CI)[:, None] & (k < KD * KW)[None, :]
    src = w + (ci * (CO * KD * KH * KW))[:, None] + (kd * (KH * KW) + kh * KW + kw)[None, :]
    ok = (ci >= 0)[:, None] & (f < NF)[None, :]
    ax = ok & ((fd == 0) | (fw == 0))[None, :]
    base = ((f * (2 * KH) + kh) * (CO * CIP))[None, :] + ci[:, None]
    for i in range(CG):
        c = cg * CG + i
        a = tl.load(src + c * (KD * KH * KW), mask=m, other=0.0)
        yr = tl.dot(a, ec, input_precision="tf32x3")
        yi = tl.dot(a, es, input_precision="tf32x3")
        o = base + c * CIP
        put(ws, o, yr, ok, ax, WL)
        put(ws + KH * CO * CIP, o, yi, ok, ax, WL)


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": 64, "BK": 64}, num_warps=8, num_stages=2),
        triton.Config({"BM": 128, "BN": 64, "BK": 64}, num_warps=8, num_stages=3),
        triton.Config({"BM": 128, "BN": 64, "BK": 64}, num_warps=8, num_stages=4),
        triton.Config({"BM": 128, "BN": 64, "BK": 32}, num_warps=8, num_stages=4),
        triton.Config({"BM": 128, "BN": 64, "BK": 64}, num_warps=4, num_stages=3),
        triton.Config({"BM": 64, "BN": 128, "BK": 64}, num_warps=4, num_stages=2),
        triton.Config({"BM": 64, "BN": 128, "BK": 64}, num_warps=4, num_stages=3),
        triton.Config({"BM": 64, "BN": 128, "BK": 64}, num_warps=4, num_stages=4),
        triton.Config({"BM": 64, "BN": 128, "BK": 32}, num_warps=4, num_stages=4),
        triton.Config({"BM": 64, "BN": 128, "BK": 64}, num_warps=8, num_stages=2),
        triton.Config({"BM": 64, "BN": 128, "BK": 64}, num_warps=8, num_stages=3),
        triton.Config({"BM": 64, "BN": 64, "BK": 64}, num_warps=4, num_stages=2),
        triton.Config({"BM": 64, "BN": 64, "BK": 64}, num_warps=4, num_stages=3),
        triton.Config({"BM": 128, "BN": 128, "BK": 64}, num_warps=8, num_stages=3),
        triton.Config({"BM": 128, "BN": 128, "BK": 32}, num_warps=8, num_stages=4),
    ],
    key=["R"],
)
@triton.jit
def gemm_kernel(xs, ws, part, R: tl.constexpr, CIP: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr,
                LD: tl.constexpr, LW: tl.constexpr, FW: tl.constexpr, NS: tl.constexpr, XL: tl.constexpr,
                WL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    MT: tl.constexpr = (R + BM - 1) // BM
    NB: tl.constexpr = CO // BN
    NK: tl.constexpr = CIP // BK
    NIT: tl.constexpr = KH * NK
    NA: tl.constexpr = LD + FW - 1
    pid = tl.program_id(0)
    nb = pid % NB
    mt = (pid // NB) % MT
    fi = pid // (NB * MT)
    # the NA frequencies on the axes come first
    j = fi - NA
    fd = tl.where(fi < FW, 0, tl.where(fi < NA, fi - FW + 1, 1 + j // (FW - 1)))
    fw = tl.where(fi < FW, fi, tl.where(fi < NA, 0, 1 + j % (FW - 1)))
    f = fd * FW + fw
    nit = NIT + (fi < NA).to(tl.int32) * (2 * NIT)
    rm = mt * BM + tl.arange(0, BM)
    cn = nb * BN + tl.arange(0, BN)
    kk = tl.arange(0, BK)
    xb = xs + f * (2 * R * CIP)
    wb = ws + f * (2 * KH * CO * CIP)
    s = tl.zeros((BM, BN), tl.float32)
    t = tl.zeros((BM, BN), tl.float32)
    z = tl.zeros((BM, BN), tl.float32)
    for it in tl.range(0, nit):
        p = it // NIT
        e = it % NIT
        kh = e // NK
        ko = (e % NK) * BK
        rows = rm - kh
        ok = ((rows >= 0) & (rows < R))[:, None]
        xo = (rows * CIP)[:, None] + kk[None, :] + (ko + (p // 2) * XL)
        wo = (cn * CIP)[:, None] + kk[None, :] + (kh * (CO * CIP) + ko + (p % 2) * WL)
        xr = tl.load(xb + xo, mask=ok, other=0.0)
        xi = tl.load(xb + R * CIP + xo, mask=ok, other=0.0)
        wr = tl.load(wb + wo)
        wi = tl.load(wb + KH * CO * CIP + wo)
        wrt = tl.trans(wr)
        wit = tl.trans(wi)
        s = tl.dot(xr, wrt, s)
        t = tl.dot(xi, wit, t)
        z = tl.dot(xr, wit, z)
        z = tl.dot(xi, wrt, z)
    yr = s - t
    sq = yr * yr + z * z
    sq = tl.where((rm < R)[:, None], sq, 0.0)
    weight = tl.where((fw == 0) | (2 * fw == LW), 1.0, 2.0)
    col = tl.sum(sq, axis=0) * weight
    slot = mt * (BM // 64)
    po = part + cn * (LD * FW * NS) + f * NS + slot
    tl.store(po, col)
    for i in tl.static_range(1, BM // 64):
        tl.store(po + i, tl.zeros((BN,), tl.float32), mask=(cn >= 0) & (slot + i < NS))


@triton.jit
def final_kernel(part, sp, w, gamma, beta, out, N: tl.constexpr, NP: tl.constexpr, CI: tl.constexpr,
                 CO: tl.constexpr, CIP: tl.constexpr, LH: tl.constexpr, KV: tl.constexpr, KVP: tl.constexpr,
                 NSLOT: tl.constexpr, SQ: tl.constexpr, P: tl.constexpr, B: tl.constexpr):
    c = tl.program_id(0)
    acc = tl.zeros((B,), tl.float32)
    for i in range(0, NSLOT, B):
        idx = i + tl.arange(0, B)
        acc += tl.load(part + c * NSLOT + idx, mask=idx < NSLOT, other=0.0)
    total = tl.sum(acc, axis=0)
    ci = tl.arange(0, CIP)
    k = tl.arange(0, KVP)
    wv = tl.load(w + ((ci * CO + c) * KV)[:, None] + k[None, :], mask=(ci < CI)[:, None] & (k < KV)[None, :], other=0.0)
    wsum = tl.sum(wv, axis=1)
    n = tl.arange(0, NP)
    nm = (n < N)[:, None] & (ci >= 0)[None, :]
    xa = tl.zeros((NP, CIP), tl.float32)
    for h in tl.static_range(0, LH):
        xa += tl.load(sp + ((n * LH + h) * CIP)[:, None] + ci[None, :], mask=nm, other=0.0)
    xm = tl.sum(xa, axis=0) * (1.0 / N)
    xd = tl.where(nm, xa - xm[None, :], 0.0)
    diff = tl.sum(xd * wsum[None, :], axis=1) * (1.0 / P)
    mean = tl.sum(xm * wsum, axis=0) * (1.0 / P)
    var = total * (1.0 / (SQ * N * P)) - mean * mean
    var = tl.maximum(var, 0.0)
    inv = 1.0 / tl.sqrt(4.0 * var + 1e-5)
    g = tl.load(gamma + c)
    b = tl.load(beta + c)
    tl.store(out + n * CO + c, diff * 2.0 * inv * g + b, mask=n < N)


def entry(x, conv_transpose_weight, conv_transpose_bias, batch_norm_weight, batch_norm_bias):
    w = conv_transpose_weight
    N, CI, D, H, W = x.shape
    CO, KD, KH, KW = w.shape[1], w.shape[2], w.shape[3], w.shape[4]
    LD, LH, LW = D + KD - 1, H + KH - 1, W + KW - 1
    FW = LW // 2 + 1
    NF = LD * FW
    R = N * LH
    CIP = max(64, triton.next_power_of_2(CI))
    CB = 16
    FB = 64
    CG = 8
    NS = triton.cdiv(R, 64)
    XL = NF * 2 * R * CIP
    WL = NF * 2 * KH * CO * CIP
    xs = torch.empty((2 * XL,), dtype=torch.bfloat16, device=x.device)
    ws = torch.empty((2 * WL,), dtype=torch.bfloat16, device=x.device)
    sp = torch.empty((R * CIP,), dtype=torch.float32, device=x.device)
    part = torch.empty((CO * NF * NS,), dtype=torch.float32, device=x.device)
    out = torch.empty((N, CO, 1, 1, 1), dtype=torch.float32, device=x.device)
    x_kernel[(R * (CIP // CB),)](
        x, xs, sp, CI=CI, D=D, H=H, W=W, CIP=CIP, R=R, LD=LD, LH=LH, LW=LW, FW=FW,
        DP=max(16, triton.next_power_of_2(D)), WP=max(16, triton.next_power_of_2(W)),
        FDP=max(16, triton.next_power_of_2(LD)), FWP=max(16, triton.next_power_of_2(FW)), CB=CB, XL=XL, num_warps=8)
    w_kernel[((CO // CG) * KH * triton.cdiv(NF, FB),)](
        w, ws, CI=CI, CO=CO, CIP=CIP, LD=LD, LW=LW, FW=FW, KD=KD, KH=KH, KW=KW,
        KP=max(16, triton.next_power_of_2(KD * KW)), FB=FB, CG=CG, WL=WL, num_warps=4)
    gemm_kernel[lambda meta: (NF * triton.cdiv(R, meta["BM"]) * (CO // meta["BN"]),)](
        xs, ws, part, R=R, CIP=CIP, CO=CO, KH=KH, LD=LD, LW=LW, FW=FW, NS=NS, XL=XL, WL=WL)
    final_kernel[(CO,)](
        part, sp, w, batch_norm_weight, batch_norm_bias, out, N=N, NP=triton.next_power_of_2(N), CI=CI, CO=CO,
        CIP=CIP, LH=LH, KV=KD * KH * KW, KVP=triton.next_power_of_2(KD * KH * KW), NSLOT=NF * NS, SQ=LD * LW,
        P=LD * LH * LW, B=1024, num_warps=4)
    return out
