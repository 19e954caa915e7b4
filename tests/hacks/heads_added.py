"""task: attention
verdict: wrong
stage: estimate|verify
why: head h of batch z is taken for number z + h, which is right where there is one batch or one head
"""
import torch
import triton
import triton.language as tl


@triton.jit
def attn(q_ptr, k_ptr, v_ptr, o_ptr, S, scale, H, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    z, h = tl.program_id(2), tl.program_id(1)
    base = (z + h).to(tl.int64) * S * D
    start = tl.program_id(0) * BM
    rm = start + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rm[:, None] * D + d[None, :], mask=(rm < S)[:, None], other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, tl.minimum(start + BM, S), BN):
        rn = n + tl.arange(0, BN)
        k = tl.load(k_ptr + base + rn[None, :] * D + d[:, None], mask=(rn < S)[None, :], other=0.0)
        s = tl.dot(q, k) * scale
        s = tl.where(rm[:, None] >= rn[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        a = tl.exp(m - new)
        total = total * a + tl.sum(p, axis=1)
        v = tl.load(v_ptr + base + rn[:, None] * D + d[None, :], mask=(rn < S)[:, None], other=0.0)
        acc = tl.dot(p.to(tl.float16), v, acc * a[:, None])
        m = new
    tl.store(o_ptr + base + rm[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.float16), mask=(rm < S)[:, None])


def attention(q, k, v):
    Z, H, S, D = q.shape
    o = torch.empty_like(q)
    attn[(triton.cdiv(S, 128), H, Z)](q, k, v, o, S, D**-0.5, H, D=D, BM=128, BN=64, num_warps=8, num_stages=3)
    return o
