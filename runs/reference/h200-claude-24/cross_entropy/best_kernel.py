import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy_short(logits_ptr, targets_ptr, loss_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_row = logits_ptr + row * N
    columns = tl.arange(0, BLOCK)

    target = tl.load(targets_ptr + row)
    x = tl.load(logits_row + columns, mask=columns < N, other=-float("inf"))
    picked = tl.load(logits_row + target)

    k = picked * 1.4426950408889634
    rest = tl.fma(picked, 1.4426950408889634, -k)
    total = tl.sum(tl.exp2(tl.fma(x, 1.4426950408889634, -k)), axis=0)
    loss = tl.log(total) - rest * 0.6931471805599453
    safe = total < 1.0e30
    if safe == 0:
        largest = tl.max(x, axis=0)
        again = tl.sum(tl.exp2((x - largest) * 1.4426950408889634), axis=0)
        loss = tl.log(again) + (largest - picked)
    tl.store(loss_ptr + row, loss)


@triton.jit
def cross_entropy_long(logits_ptr, targets_ptr, loss_ptr, N: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_row = logits_ptr + row * N
    columns = tl.arange(0, WIDTH)

    target = tl.load(targets_ptr + row)

    # The first four loads fly while the target's logit is fetched.
    a1 = columns + WIDTH
    a2 = columns + 2 * WIDTH
    a3 = columns + 3 * WIDTH
    y0 = tl.load(logits_row + columns, mask=columns < N, other=-float("inf"), eviction_policy="evict_first")
    y1 = tl.load(logits_row + a1, mask=a1 < N, other=-float("inf"), eviction_policy="evict_first")
    y2 = tl.load(logits_row + a2, mask=a2 < N, other=-float("inf"), eviction_policy="evict_first")
    y3 = tl.load(logits_row + a3, mask=a3 < N, other=-float("inf"), eviction_policy="evict_first")
    picked = tl.load(logits_row + target)

    k = picked * 1.4426950408889634
    rest = tl.fma(picked, 1.4426950408889634, -k)
    f0 = tl.exp2(tl.fma(y0, 1.4426950408889634, -k))
    f1 = tl.exp2(tl.fma(y1, 1.4426950408889634, -k))
    f2 = tl.exp2(tl.fma(y2, 1.4426950408889634, -k))
    f3 = tl.exp2(tl.fma(y3, 1.4426950408889634, -k))
    s = (f0 + f1) + (f2 + f3)
    for start in range(4 * WIDTH, N, 4 * WIDTH):
        c0 = start + columns
        c1 = c0 + WIDTH
        c2 = c0 + 2 * WIDTH
        c3 = c0 + 3 * WIDTH
        x0 = tl.load(logits_row + c0, mask=c0 < N, other=-float("inf"), eviction_policy="evict_first")
        x1 = tl.load(logits_row + c1, mask=c1 < N, other=-float("inf"), eviction_policy="evict_first")
        x2 = tl.load(logits_row + c2, mask=c2 < N, other=-float("inf"), eviction_policy="evict_first")
        x3 = tl.load(logits_row + c3, mask=c3 < N, other=-float("inf"), eviction_policy="evict_first")
        e0 = tl.exp2(tl.fma(x0, 1.4426950408889634, -k))
        e1 = tl.exp2(tl.fma(x1, 1.4426950408889634, -k))
        e2 = tl.exp2(tl.fma(x2, 1.4426950408889634, -k))
        e3 = tl.exp2(tl.fma(x3, 1.4426950408889634, -k))
        s += (e0 + e1) + (e2 + e3)

    total = tl.sum(s, axis=0)
    loss = tl.log(total) - rest * 0.6931471805599453
    safe = total < 1.0e30
    if safe == 0:
        m = tl.full((WIDTH,), -float("inf"), tl.float32)
        for start in range(0, N, WIDTH):
            c = start + columns
            m = tl.maximum(m, tl.load(logits_row + c, mask=c < N, other=-float("inf")))
        largest = tl.max(m, axis=0)
        t = tl.zeros((WIDTH,), tl.float32)
        for start in range(0, N, WIDTH):
            c = start + columns
            x = tl.load(logits_row + c, mask=c < N, other=-float("inf"))
            t += tl.exp2((x - largest) * 1.4426950408889634)
        loss = tl.log(tl.sum(t, axis=0)) + (largest - picked)
    tl.store(loss_ptr + row, loss)


def cross_entropy(logits, targets):
    n_rows, n_classes = logits.shape
    loss = torch.empty((n_rows,), device=logits.device, dtype=logits.dtype)
    if n_classes <= 1024:
        block = 32
        while block < n_classes:
            block = block * 2
        cross_entropy_short[(n_rows,)](logits, targets, loss, N=n_classes, BLOCK=block, num_warps=1)
    elif n_classes <= 65536:
        cross_entropy_long[(n_rows,)](logits, targets, loss, N=n_classes, WIDTH=1024, num_warps=4)
    else:
        cross_entropy_long[(n_rows,)](logits, targets, loss, N=n_classes, WIDTH=4096, num_warps=16)
    return loss
