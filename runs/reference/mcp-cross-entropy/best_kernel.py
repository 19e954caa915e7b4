import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"UNROLL": u, "BLOCK": 128 * w, "STAGES": s}, num_warps=w)
             for w in (1, 2, 4, 8, 16) for u in (2, 4, 8, 16) for s in (1, 2, 3)],
    key=["n_classes", "PART"],
)
@triton.jit
def part_kernel(logits_ptr, targets_ptr, tops_ptr, totals_ptr, picked_ptr, n_classes: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
                UNROLL: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    pid = tl.program_id(0)
    row = (pid // PARTS).to(tl.int64)
    begin = (pid % PARTS) * PART
    here = logits_ptr + row * n_classes + begin
    left = tl.minimum(n_classes - begin, PART)
    if pid % PARTS == 0:
        target = tl.load(targets_ptr + row)
        tl.store(picked_ptr + row, tl.load(logits_ptr + row * n_classes + target))
    TILE: tl.constexpr = UNROLL * BLOCK
    FULL: tl.constexpr = (PART // TILE) * TILE
    EVEN: tl.constexpr = n_classes % PART == 0
    offsets = tl.arange(0, UNROLL)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]

    largest = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    if FULL < PART:
        if EVEN:
            x = tl.load(here + FULL + offsets, mask=FULL + offsets < PART, other=-float("inf"))
        else:
            x = tl.load(here + FULL + offsets, mask=FULL + offsets < left, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(x, axis=0))
        total = tl.sum(tl.exp(x - largest[None, :]), axis=0)
    for start in tl.range(0, FULL, TILE, num_stages=STAGES):
        if EVEN:
            x = tl.load(here + start + offsets)
        else:
            x = tl.load(here + start + offsets, mask=start + offsets < left, other=-float("inf"))
        new = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new[None, :]), axis=0)
        largest = new

    top = tl.max(largest, axis=0)
    tl.store(tops_ptr + pid, top)
    tl.store(totals_ptr + pid, tl.sum(total * tl.exp(largest - top), axis=0))


@triton.autotune(
    configs=[triton.Config({"ROWS": r}, num_warps=w) for w in (1, 2, 4) for r in (1, 2, 4, 8, 16)],
    key=["n_rows", "PARTS"],
)
@triton.jit
def combine_kernel(picked_ptr, loss_ptr, tops_ptr, totals_ptr, n_rows,
                   PARTS: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = rows < n_rows
    parts = rows[:, None] * PARTS + tl.arange(0, PARTS)[None, :]
    picked = tl.load(picked_ptr + rows, mask=mask, other=0.0)
    tops = tl.load(tops_ptr + parts, mask=mask[:, None], other=0.0)
    totals = tl.load(totals_ptr + parts, mask=mask[:, None], other=1.0)
    top = tl.max(tops, axis=1)
    total = tl.sum(totals * tl.exp(tops - top[:, None]), axis=1)
    tl.store(loss_ptr + rows, tl.log(total) + (top - picked), mask=mask)


@triton.autotune(
    configs=[triton.Config({"ROWS": r}, num_warps=w) for w in (1, 2, 4, 8) for r in (1, 2, 4, 8, 16)],
    key=["n_classes"],
)
@triton.jit
def short_rows_kernel(logits_ptr, targets_ptr, loss_ptr, n_rows, n_classes: tl.constexpr,
                      BLOCK: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < n_rows
    columns = tl.arange(0, BLOCK)
    target = tl.load(targets_ptr + rows, mask=row_mask, other=0)
    base = rows.to(tl.int64) * n_classes
    x = tl.load(logits_ptr + base[:, None] + columns[None, :],
                mask=row_mask[:, None] & (columns < n_classes)[None, :], other=-float("inf"))
    picked = tl.load(logits_ptr + base + target, mask=row_mask, other=0.0)
    largest = tl.max(x, axis=1)
    total = tl.sum(tl.exp(x - largest[:, None]), axis=1)
    tl.store(loss_ptr + rows, tl.log(total) + (largest - picked), mask=row_mask)


def cross_entropy(logits, targets):
    n_rows, n_classes = logits.shape
    loss = torch.empty((n_rows,), device=logits.device, dtype=logits.dtype)
    if n_classes <= 2048:
        short_rows_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](
            logits, targets, loss, n_rows, n_classes, BLOCK=triton.next_power_of_2(n_classes))
    else:
        parts = 4 if n_classes <= 32768 else 32
        part = triton.cdiv(triton.cdiv(n_classes, parts), 32) * 32
        tops = torch.empty((n_rows * parts,), device=logits.device, dtype=torch.float32)
        totals = torch.empty((n_rows * parts,), device=logits.device, dtype=torch.float32)
        picked = torch.empty((n_rows,), device=logits.device, dtype=torch.float32)
        part_kernel[(n_rows * parts,)](logits, targets, tops, totals, picked, n_classes, part, parts)
        combine_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](
            picked, loss, tops, totals, n_rows, parts)
    return loss
