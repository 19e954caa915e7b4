import torch
import triton
import triton.language as tl


@triton.jit
def plane(word, SHIFT: tl.constexpr):
    # word holds four bytes w + 128; 0x6400 | byte is the float16 1024 + byte, so the result is exactly w
    return (((word >> SHIFT) & 0xFF) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def plane_kernel(
    x_ptr,
    word_ptr,
    part_ptr,
    M,
    N,
    K,
    CHUNK,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_M: tl.constexpr,
):
    words = N // 4
    cols = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    rows = tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    low = split * CHUNK
    high = tl.minimum(low + CHUNK, K)
    acc0 = tl.zeros((BLOCK_M, BLOCK_W), dtype=tl.float32)
    acc1 = tl.zeros((BLOCK_M, BLOCK_W), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_M, BLOCK_W), dtype=tl.float32)
    acc3 = tl.zeros((BLOCK_M, BLOCK_W), dtype=tl.float32)
    for start in range(low, high, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        word = tl.load(word_ptr + k[:, None] * words + cols[None, :])
        if EVEN_M:
            x = tl.load(x_ptr + rows[:, None] * K + k[None, :])
        else:
            x = tl.load(x_ptr + rows[:, None] * K + k[None, :], mask=(rows < M)[:, None], other=0.0)
        # flips the top bit of each of the four bytes: 0x80808080 as a signed number
        word = word ^ -2139062144
        acc0 = tl.dot(x, plane(word, 0), acc0)
        acc1 = tl.dot(x, plane(word, 8), acc1)
        acc2 = tl.dot(x, plane(word, 16), acc2)
        acc3 = tl.dot(x, plane(word, 24), acc3)
    both = tl.join(tl.join(acc0, acc2), tl.join(acc1, acc3))
    acc = tl.reshape(both, (BLOCK_M, BLOCK_W * 4))
    columns = tl.program_id(0) * (BLOCK_W * 4) + tl.arange(0, BLOCK_W * 4)
    tl.store(
        part_ptr + split * M * N + rows[:, None] * N + columns[None, :],
        acc,
        mask=(rows < M)[:, None] & (columns < N)[None, :],
    )


@triton.jit
def reduce_kernel(part_ptr, scale_ptr, y_ptr, N, n, SPLIT: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for s in tl.static_range(SPLIT):
        total += tl.load(part_ptr + s * n + offsets, mask=mask, other=0.0)
    scale = tl.load(scale_ptr + offsets % N, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + offsets, (total * scale).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def widen_kernel(w_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    u = tl.load(w_ptr + offsets, mask=mask, other=0).to(tl.uint8, bitcast=True) ^ 0x80
    wide = (u.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1152.0
    tl.store(out_ptr + offsets, wide.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def matmul_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    # all row tiles of a few column tiles run together: w comes from memory once, x stays in L2
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    rows = (pid % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (pid // tiles_m) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * K + ks[None, :]
    w_ptrs = w_ptr + ks[:, None] * N + columns[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:
            k = start + ks
            x = tl.load(x_ptrs, mask=(rows < M)[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_ptrs, mask=(k < K)[:, None] & (columns < N)[None, :], other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K * N
    scale = tl.load(scale_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(
        y_ptr + rows[:, None] * N + columns[None, :],
        (acc * scale[None, :]).to(y_ptr.dtype.element_ty),
        mask=(rows < M)[:, None] & (columns < N)[None, :],
    )


def int8_matmul(x, w, scale):
    M, K = x.shape
    N = w.shape[1]
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    if M <= 32 and N % 128 == 0 and K % 64 == 0:
        BLOCK_M = 16 if M <= 16 else 32
        BLOCK_W, BLOCK_K, SPLIT = 32, 64, 3
        chunk = triton.cdiv(K // BLOCK_K, SPLIT) * BLOCK_K
        part = torch.empty((SPLIT, M, N), device=x.device, dtype=torch.float32)
        plane_kernel[(N // (4 * BLOCK_W), SPLIT)](
            x,
            w.view(torch.int32),
            part,
            M,
            N,
            K,
            chunk,
            BLOCK_M=BLOCK_M,
            BLOCK_W=BLOCK_W,
            BLOCK_K=BLOCK_K,
            EVEN_M=M % BLOCK_M == 0,
            num_warps=4,
            num_stages=6,
        )
        n = M * N
        BLOCK_SIZE = 512
        reduce_kernel[(triton.cdiv(n, BLOCK_SIZE),)](
            part, scale, y, N, n, SPLIT=SPLIT, BLOCK_SIZE=BLOCK_SIZE, num_warps=4
        )
        return y
    wide = torch.empty((K, N), device=w.device, dtype=x.dtype)
    n = w.numel()
    BLOCK_SIZE = 4096
    widen_kernel[(triton.cdiv(n, BLOCK_SIZE),)](w, wide, n, BLOCK_SIZE=BLOCK_SIZE, num_warps=8)
    if M >= 512:
        BLOCK_M, BLOCK_N, BLOCK_K, warps, stages = 128, 256, 64, 8, 4
    else:
        BLOCK_M, BLOCK_N, BLOCK_K, warps, stages = 64, 64, 64, 4, 3
    even = M % BLOCK_M == 0 and N % BLOCK_N == 0 and K % BLOCK_K == 0
    matmul_kernel[(triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)](
        x,
        wide,
        scale,
        y,
        M,
        N,
        K,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        EVEN=even,
        num_warps=warps,
        num_stages=stages,
    )
    return y
