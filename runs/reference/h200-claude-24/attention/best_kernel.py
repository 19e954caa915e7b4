import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({'BLOCK_M': 64, 'BLOCK_N': 64}, num_warps=4, num_ctas=1, num_stages=3)],
    key=["S", "D"],
)
@triton.jit
def fast_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    flag_ptr,
    S,
    factor,
    D: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # heads run fastest, tiles go from the longest to the shortest
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    head_row = tl.program_id(0).to(tl.int64) * S
    head = head_row * D
    first = tile * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    q_offsets = rows[:, None] * D + d[None, :]
    offsets = n[:, None] * D + d[None, :]
    k_base = k_ptr + head
    v_base = v_ptr + head
    if EVEN:
        q = tl.load(q_ptr + head + q_offsets)
    else:
        q = tl.load(q_ptr + head + q_offsets, mask=(rows < S)[:, None], other=0.0)

    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)

    # keys below the diagonal (BLOCK_N divides BLOCK_M)
    for start in range(0, first, BLOCK_N):
        k = tl.load(k_base + start * D + offsets)
        scores = tl.dot(q, tl.trans(k))
        p = tl.exp2(scores * factor)
        total += tl.sum(p, axis=1)
        v = tl.load(v_base + start * D + offsets)
        acc = tl.dot(p.to(v.dtype), v, acc)

    # keys on the diagonal
    last = tl.minimum(first + BLOCK_M, S)
    for start in range(first, last, BLOCK_N):
        columns = start + n
        if EVEN:
            k = tl.load(k_base + start * D + offsets)
        else:
            k = tl.load(k_base + start * D + offsets, mask=(columns < S)[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k))
        scores = tl.where(columns[None, :] <= rows[:, None], scores, -float("inf"))
        p = tl.exp2(scores * factor)
        total += tl.sum(p, axis=1)
        if EVEN:
            v = tl.load(v_base + start * D + offsets)
        else:
            v = tl.load(v_base + start * D + offsets, mask=(columns < S)[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)

    # no overflow of float16, and a mean far above its smallest normal number (not true for NaN)
    least = (rows + 1).to(tl.float32) * 0.001953125
    accurate = (total <= 60000.0) & (total >= least)
    tl.store(flag_ptr + head_row + rows, tl.where(accurate, 0, 1).to(tl.int8), mask=rows < S)

    out = (acc * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + head + q_offsets, out)
    else:
        tl.store(out_ptr + head + q_offsets, out, mask=(rows < S)[:, None])


@triton.jit
def repair_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    flag_ptr,
    S,
    factor,
    D: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head_row = tl.program_id(0).to(tl.int64) * S
    head = head_row * D
    base = tl.program_id(1) * SPAN
    span = base + tl.arange(0, SPAN)
    flags = tl.load(flag_ptr + head_row + span, mask=span < S, other=0).to(tl.int32)
    bad = tl.max(flags, axis=0)
    end = base + bad * (tl.minimum(base + SPAN, S) - base)

    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, D)
    offsets = n[:, None] * D + d[None, :]
    # no trips where all rows are accurate
    for first in tl.range(base, end, BLOCK_M, num_stages=1):
        rows = first + tl.arange(0, BLOCK_M)
        q_offsets = rows[:, None] * D + d[None, :]
        q = tl.load(q_ptr + head + q_offsets, mask=(rows < S)[:, None], other=0.0)
        largest = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((BLOCK_M,), dtype=tl.float32)
        acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
        last = tl.minimum(first + BLOCK_M, S)
        for start in tl.range(0, last, BLOCK_N, num_stages=2):
            columns = start + n
            k = tl.load(k_ptr + head + start * D + offsets, mask=(columns < S)[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k))
            scores = tl.where(columns[None, :] <= rows[:, None], scores, -float("inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1) * factor)
            p = tl.exp2(scores * factor - new_largest[:, None])
            shrink = tl.exp2(largest - new_largest)
            total = total * shrink + tl.sum(p, axis=1)
            acc = acc * shrink[:, None]
            v = tl.load(v_ptr + head + start * D + offsets, mask=(columns < S)[:, None], other=0.0)
            acc = tl.dot(p.to(v.dtype), v, acc)
            largest = new_largest
        out = (acc * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + head + q_offsets, out, mask=(rows < S)[:, None])


def attention(q, k, v):
    Z, H, S, D = q.shape
    out = torch.empty_like(q)
    flags = torch.empty((Z * H, S), dtype=torch.int8, device=q.device)
    factor = D**-0.5 * 1.4426950408889634
    grid = lambda meta: (Z * H, triton.cdiv(S, meta["BLOCK_M"]))
    fast_kernel[grid](q, k, v, out, flags, S, factor, D=D, EVEN=S % 128 == 0)
    SPAN = 512
    repair_kernel[(Z * H, triton.cdiv(S, SPAN))](
        q,
        k,
        v,
        out,
        flags,
        S,
        factor,
        D=D,
        SPAN=SPAN,
        BLOCK_M=64,
        BLOCK_N=64,
        num_warps=4,
        num_stages=2,
    )
    return out
