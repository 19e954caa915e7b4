import torch
import triton
import triton.language as tl


@triton.jit
def stream_kernel(
    a_ptr,
    b_ptr,
    dc_ptr,
    da_ptr,
    db_ptr,
    B,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LONG: tl.constexpr,
    SHORT: tl.constexpr,
    BR: tl.constexpr,
):
    # short K: both gradients at once, half of the programs each, along the wrapped diagonals of dc
    pid = tl.program_id(0)
    first = pid // 2
    stride = tl.num_programs(0) // 2
    TK: tl.constexpr = K // SHORT
    r = tl.arange(0, BR)
    ls = tl.arange(0, LONG)
    ss = tl.arange(0, SHORT)
    acc = tl.zeros((SHORT, LONG), dtype=tl.float32)
    if pid % 2 == 0:
        TM: tl.constexpr = M // LONG
        STEPS: tl.constexpr = N // BR
        turns = tl.cdiv(B * (TM * TK) - first, stride)
        w_off = ss[:, None] * N + r[None, :]
        x_off = ls[:, None] * N + r[None, :]
        for q in range(0, turns * STEPS):
            step = q % STEPS
            tile = first + (q // STEPS) * stride
            batch = tile // (TM * TK)
            inside = tile % (TM * TK)
            i = inside % TM
            j = inside // TM
            s = tl.multiple_of((step * BR + i * LONG) % N, BR)
            row_w = (batch * K + j * SHORT).to(tl.int64)
            row_x = (batch * M + i * LONG).to(tl.int64)
            w = tl.load(b_ptr + (row_w * N + s) + w_off)
            x = tl.load(dc_ptr + (row_x * N + s) + x_off)
            acc = tl.dot(w, tl.trans(x), acc)
            if step == STEPS - 1:
                out = da_ptr + (row_x * K + j * SHORT) + (ls[:, None] * K + ss[None, :])
                tl.store(out, tl.trans(acc.to(da_ptr.dtype.element_ty)))
                acc = tl.zeros((SHORT, LONG), dtype=tl.float32)
    else:
        TN: tl.constexpr = N // LONG
        STEPS2: tl.constexpr = M // BR
        turns2 = tl.cdiv(B * (TN * TK) - first, stride)
        u_off = r[:, None] * K + ss[None, :]
        v_off = r[:, None] * N + ls[None, :]
        for q2 in range(0, turns2 * STEPS2):
            step2 = q2 % STEPS2
            tile2 = first + (q2 // STEPS2) * stride
            batch2 = tile2 // (TN * TK)
            inside2 = tile2 % (TN * TK)
            j2 = inside2 % TN
            i2 = inside2 // TN
            # blocks of rows backwards from the diagonal, slabs within a block forwards
            slab = (step2 * BR) % LONG
            s2 = (j2 * LONG + M * TN - (step2 * BR - slab)) % M + slab
            s2 = tl.multiple_of(s2, BR)
            row_u = (batch2 * M + s2).to(tl.int64)
            u = tl.load(a_ptr + (row_u * K + i2 * SHORT) + u_off)
            v = tl.load(dc_ptr + (row_u * N + j2 * LONG) + v_off)
            acc = tl.dot(tl.trans(u), v, acc)
            if step2 == STEPS2 - 1:
                row_o = (batch2 * K + i2 * SHORT).to(tl.int64)
                out2 = db_ptr + (row_o * N + j2 * LONG) + (ss[:, None] * N + ls[None, :])
                tl.store(out2, acc.to(db_ptr.dtype.element_ty))
                acc = tl.zeros((SHORT, LONG), dtype=tl.float32)


@triton.jit
def round_kernel(
    a_ptr,
    b_ptr,
    dc_ptr,
    da_ptr,
    db_ptr,
    B,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    LONG: tl.constexpr,
    SHORT: tl.constexpr,
    BR: tl.constexpr,
):
    # long K, a multiple of LONG: batch by batch, one gradient after the other, SHORT x LONG tiles of both
    DA_COLS: tl.constexpr = K // LONG
    DA_TILES: tl.constexpr = (M // SHORT) * DA_COLS
    DB_COLS: tl.constexpr = N // LONG
    DB_TILES: tl.constexpr = (K // SHORT) * DB_COLS
    TILES: tl.constexpr = DA_TILES + DB_TILES
    ls = tl.arange(0, LONG)
    ss = tl.arange(0, SHORT)
    r = tl.arange(0, BR)
    for t in range(tl.program_id(0), TILES * B, tl.num_programs(0)):
        batch = t // TILES
        part = t % TILES
        wide = batch.to(tl.int64)
        if part < DA_TILES:
            m0 = (part // DA_COLS) * SHORT
            k0 = (part % DA_COLS) * LONG
            x_base = dc_ptr + (wide * M + m0) * N
            y_base = b_ptr + (wide * K + k0) * N
            x_off = ss[:, None] * N + r[None, :]
            y_off = ls[:, None] * N + r[None, :]
            acc = tl.zeros((SHORT, LONG), dtype=tl.float32)
            for s in range(0, N, BR):
                x = tl.load(x_base + s + x_off)
                y = tl.load(y_base + s + y_off)
                acc = tl.dot(x, tl.trans(y), acc)
            out = da_ptr + ((wide * M + m0) * K + k0) + (ss[:, None] * K + ls[None, :])
            tl.store(out, acc.to(da_ptr.dtype.element_ty))
        else:
            rest = part - DA_TILES
            p0 = (rest // DB_COLS) * SHORT
            n0 = (rest % DB_COLS) * LONG
            u_base = a_ptr + wide * M * K + p0
            v_base = dc_ptr + wide * M * N + n0
            u_off = r[:, None] * K + ss[None, :]
            v_off = r[:, None] * N + ls[None, :]
            acc2 = tl.zeros((SHORT, LONG), dtype=tl.float32)
            for s2 in range(0, M, BR):
                u = tl.load(u_base + s2 * K + u_off)
                v = tl.load(v_base + s2 * N + v_off)
                acc2 = tl.dot(tl.trans(u), v, acc2)
            out2 = db_ptr + ((wide * K + p0) * N + n0) + (ss[:, None] * N + ls[None, :])
            tl.store(out2, acc2.to(db_ptr.dtype.element_ty))


@triton.jit
def masked_kernel(
    a_ptr,
    b_ptr,
    dc_ptr,
    da_ptr,
    db_ptr,
    M,
    N,
    K,
    LONG: tl.constexpr,
    SHORT: tl.constexpr,
    BR: tl.constexpr,
):
    pid = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    tiles_k = tl.cdiv(K, SHORT)
    r = tl.arange(0, BR)
    t = pid // 2
    i = t // tiles_k
    k = (t % tiles_k) * SHORT + tl.arange(0, SHORT)
    long = i * LONG + tl.arange(0, LONG)
    in_k = k < K
    acc = tl.zeros((SHORT, LONG), dtype=tl.float32)
    if pid % 2 == 0:
        in_m = long < M
        for start in range(0, N, BR):
            n = start + r
            left = (n < N)[None, :]
            w = tl.load(b_ptr + batch * K * N + k[:, None] * N + n[None, :], mask=in_k[:, None] & left, other=0.0)
            x = tl.load(dc_ptr + batch * M * N + long[:, None] * N + n[None, :], mask=in_m[:, None] & left, other=0.0)
            acc = tl.dot(w, tl.trans(x), acc)
        tl.store(
            da_ptr + batch * M * K + (long[:, None] * K + k[None, :]),
            tl.trans(acc.to(da_ptr.dtype.element_ty)),
            mask=in_m[:, None] & in_k[None, :],
        )
    else:
        in_n = long < N
        for start2 in range(0, M, BR):
            m = start2 + r
            left2 = (m < M)[:, None]
            u = tl.load(a_ptr + batch * M * K + m[:, None] * K + k[None, :], mask=left2 & in_k[None, :], other=0.0)
            v = tl.load(dc_ptr + batch * M * N + m[:, None] * N + long[None, :], mask=left2 & in_n[None, :], other=0.0)
            acc = tl.dot(tl.trans(u), v, acc)
        tl.store(
            db_ptr + batch * K * N + (k[:, None] * N + long[None, :]),
            acc.to(db_ptr.dtype.element_ty),
            mask=in_k[:, None] & in_n[None, :],
        )


def matmul_backward(a, b, dc):
    B, M, K = a.shape
    N = b.shape[2]
    da = torch.empty((B, M, K), device=a.device, dtype=a.dtype)
    db = torch.empty((B, K, N), device=b.device, dtype=b.dtype)
    if M % 256 == 0 and N % 256 == 0 and K % 512 == 0:
        total = B * ((M // 128) * (K // 256) + (K // 128) * (N // 256))
        rounds = triton.cdiv(total, 132)
        round_kernel[(triton.cdiv(total, rounds),)](
            a,
            b,
            dc,
            da,
            db,
            B,
            M=M,
            N=N,
            K=K,
            LONG=256,
            SHORT=128,
            BR=64,
            num_warps=8,
            num_stages=4,
        )
    elif M % 256 == 0 and N % 256 == 0 and K % 128 == 0:
        fewest = B * (min(M, N) // 256) * (K // 128)
        rounds = triton.cdiv(fewest, 66)
        stream_kernel[(2 * triton.cdiv(fewest, rounds),)](
            a,
            b,
            dc,
            da,
            db,
            B,
            M=M,
            N=N,
            K=K,
            LONG=256,
            SHORT=128,
            BR=64,
            num_warps=8,
            num_stages=4,
        )
    else:
        tiles = triton.cdiv(max(M, N), 64) * triton.cdiv(K, 64)
        masked_kernel[(2 * tiles, B)](
            a, b, dc, da, db, M, N, K, LONG=64, SHORT=64, BR=32, num_warps=4, num_stages=2
        )
    return da, db
