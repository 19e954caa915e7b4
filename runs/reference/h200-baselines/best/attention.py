import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, S, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    head = tl.program_id(1).to(tl.int64) * S * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head + rows[:, None] * D + d[None, :], mask=(rows < S)[:, None], other=0.0)

    largest = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for start in range(0, S, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_t = tl.load(k_ptr + head + columns[None, :] * D + d[:, None], mask=(columns < S)[None, :], other=0.0)
        v = tl.load(v_ptr + head + columns[:, None] * D + d[None, :], mask=(columns < S)[:, None], other=0.0)
        scores = tl.dot(q, k_t) * scale
        scores = tl.where(columns[None, :] <= rows[:, None], scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp2((scores - new_largest[:, None]) * 1.4426950408889634)
        shrink = tl.exp2((largest - new_largest) * 1.4426950408889634)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        largest = new_largest

    out = acc / total[:, None]
    tl.store(
        out_ptr + head + rows[:, None] * D + d[None, :], out.to(out_ptr.dtype.element_ty), mask=(rows < S)[:, None]
    )


def attention(q, k, v):
    Z, H, S, D = q.shape
    out = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 64, 64
    grid = (triton.cdiv(S, BLOCK_M), Z * H)
    attention_kernel[grid](q, k, v, out, S, D**-0.5, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=3)
    return out
