"""Small kernels in forms that the built-in tasks do not have, for the tests of operators."""

HEADER = "import torch\nimport triton\nimport triton.language as tl\n\n\n"

ONE_PASS_SOFTMAX = (
    HEADER
    + """@triton.jit
def softmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    y_row = y_ptr + row * n
    tl.store(y_row + offsets, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    m, n = x.shape
    softmax_kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n))
    return y
"""
)

OVER_LAUNCHED = (
    HEADER
    + """@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2.0, mask=mask)


def double(x):
    y = torch.empty_like(x)
    n = x.numel()
    scale_kernel[(n,)](x, y, n, BLOCK=4)
    return y
"""
)

ROWS_OF_PLANES = (
    HEADER
    + """@triton.jit
def softmax_kernel(x_ptr, y_ptr, plane, stride, n, BLOCK: tl.constexpr, LOG: tl.constexpr, SCALE: tl.constexpr = 0.5):
    at, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x_row = x_ptr + at * plane + row * stride
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_row + columns, mask=columns < n, other=float("-inf"))
    if SCALE != 1.0:
        x = x * SCALE
    z = x - tl.max(x, axis=0)
    total = tl.sum(tl.exp(z), axis=0)
    if LOG:
        y = z - tl.log(total)
    else:
        y = tl.exp(z) / total
    tl.store(y_ptr + at * plane + row * stride + columns, y, mask=columns < n)


def planes(x):
    y = torch.empty_like(x)
    a, b, n = x.shape
    softmax_kernel[(a, b)](x, y, b * n, n, n, BLOCK=triton.next_power_of_2(n), LOG=True)
    return y
"""
)

ONE_PASS_LAYER_NORM = (
    HEADER
    + """@triton.jit
def norm_kernel(x_ptr, w_ptr, y_ptr, mean_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    x32 = x.to(tl.float32)
    mean = tl.sum(x32, axis=0) / n
    centred = tl.where(mask, x32 - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + 1e-5)
    tl.store(mean_ptr + row, mean)
    w = tl.load(w_ptr + columns, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + columns, centred * rstd * w, mask=mask)


def norm(x, w):
    y = torch.empty_like(x)
    m, n = x.shape
    mean = torch.empty((m,), device=x.device, dtype=x.dtype)
    BLOCK = triton.next_power_of_2(n)
    norm_kernel[(m,)](x, w, y, mean, n, BLOCK=BLOCK)
    return y, mean
"""
)

FLAT_TILES = (
    HEADER
    + """@triton.jit
def outer_kernel(a_ptr, b_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    pid_m = pid // tiles_n
    pid_n = pid % tiles_n
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a = tl.load(a_ptr + rows, mask=rows < M, other=0.0)
    b = tl.load(b_ptr + columns, mask=columns < N, other=0.0)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], a[:, None] * b[None, :], mask=inside)


def outer(a, b):
    M, N = a.shape[0], b.shape[0]
    out = torch.empty((M, N), device=a.device, dtype=a.dtype)
    BLOCK_M = 8
    grid = lambda meta: (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, meta["BLOCK_N"]),)
    outer_kernel[grid](a, b, out, M, N, BLOCK_M, BLOCK_N=16)
    return out
"""
)

COLUMN_SUM = (
    HEADER
    + """BLOCK = 16


@triton.jit
def column_sum_kernel(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(M):
        columns = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < N
        total += tl.load(x_ptr + i * N + columns, mask=inside, other=0.0)
    out = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + out, total, mask=out < N)


def column_sum(x):
    M, N = x.shape
    y = torch.empty((N,), device=x.device, dtype=x.dtype)
    column_sum_kernel[(triton.cdiv(N, BLOCK),)](x, y, M, N, BLOCK=BLOCK)
    return y
"""
)

IN_PLACE = (
    HEADER
    + """@triton.jit
def scale_kernel(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, x * factor, mask=offsets < n)


def scale(x, factor):
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 32),)](x, n, factor, BLOCK=32, num_warps=2)
    return x
"""
)

TUNED = (
    HEADER
    + """@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 32}, num_warps=1),
        triton.Config({"BLOCK": 64}),
    ],
    key=["n"],
)
@triton.jit
def halve_kernel(x_ptr, y_ptr, n, PARTS: "tl.constexpr", BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x / PARTS, mask=offsets < n)


def halve(x):
    y = torch.empty_like(x)
    n = x.numel()
    halve_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, PARTS=2)
    return y
"""
)

EARLY_RETURN = (
    HEADER
    + """@triton.jit
def head_kernel(x_ptr, y_ptr, n, kept, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    if start >= kept:
        return
    offsets = start + tl.arange(0, BLOCK)
    inside = (offsets < n) & (offsets < kept)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=inside), mask=inside)


def head(x, kept):
    y = torch.zeros_like(x)
    n = x.numel()
    head_kernel[(triton.cdiv(n, 16),)](x, y, n, kept, BLOCK=16)
    return y
"""
)

# Tiles of two dimensions, a value of each row of one, a parameter that moves with the row.
TILES_OF_ROWS = (
    HEADER
    + """@triton.jit
def scale_kernel(x_ptr, order_ptr, y_ptr, heads, n, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    head, column = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK)
    place = tl.abs(tl.load(order_ptr + row)).to(tl.int32)
    x_ptr += row * heads * n
    mask = (head[:, None] < heads) & (column[None, :] < n)
    x = tl.load(x_ptr + head[:, None] * n + column[None, :], mask=mask, other=0.0)
    largest = tl.max(tl.abs(x), axis=1) + 1.0
    y_row = y_ptr + row * heads * (n + 1)
    tl.store(y_row + head[:, None] * (n + 1) + column[None, :], x / largest[:, None] * place, mask=mask)
    tl.store(y_row + head * (n + 1) + n, largest, mask=head < heads)
    return


def scaled(x, order):
    rows, heads, n = x.shape
    y = torch.empty((rows, heads, n + 1), dtype=x.dtype, device=x.device)
    blocks = triton.next_power_of_2(heads), triton.next_power_of_2(n)
    scale_kernel[rows,](x, order, y, heads, n, blocks[0], blocks[1])
    return y
"""
)

# What a program stores is where it loaded from; masks in both places, and none.
ROWS_IN_PLACE = (
    HEADER
    + """@triton.jit
def centre_kernel(x_ptr, counts_ptr, n, rounds, BLOCK: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    place = x_ptr + row * n + column
    x = tl.load(place, mask=column < n, other=0.0)
    mean = tl.sum(x, axis=0) / n
    if rounds > 5:
        return
    for turn in range(0, min(rounds, 2)):
        x += turn
    if HALF: x = x / 2.0
    tl.store(place, x - mean, column < n)
    tl.store(x_ptr + row * n + column, tl.load(place, mask=column < n) * 2.0, mask=column < n, cache_modifier=".cg")
    tl.store(counts_ptr + row, tl.load(counts_ptr + row) + mean)


def centre(x, counts):
    centre_kernel[(x.shape[0],)](x, counts, x.shape[1], 3, triton.next_power_of_2(x.shape[1]), True)
    return x
"""
)

# Each branch has a launch, and a grid of its own under the same name; loops carry what becomes one value a row.
TWO_LAUNCHES = (
    HEADER
    + """ROOT = True


@triton.jit
def squared(v):
    return v.to(tl.float32) * v


@triton.jit
def mean_kernel(x_ptr, y_ptr, planes, n, BLOCK: tl.constexpr):
    row, plane = tl.program_id(0), tl.program_id(1)
    x_row = x_ptr + (row * planes + plane) * n
    largest = 0
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    total = 0.0
    for start in range(0, n, BLOCK):
        column = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
        x = tl.load(x_row + column, mask=column < n, other=0.0)
        sums += squared(x)
        total = tl.maximum(total, tl.max(x, axis=0))
    largest = total * 2.0
    mean = tl.sum(sums, axis=0) / n
    if ROOT:
        mean = tl.sqrt(mean)
    tl.store(y_ptr + row * planes + plane, mean + largest)


def means(x):
    rows, planes, n = x.shape
    y = torch.empty((rows, planes), dtype=x.dtype, device=x.device)
    if n % 16:
        grid = (rows, planes)
        mean_kernel[grid](x, y, planes, n, BLOCK=8)
    else:
        grid = lambda meta: (rows, triton.cdiv(planes * meta["BLOCK"], meta["BLOCK"]))
        mean_kernel[grid](x, y, planes, n, BLOCK=16)
    return y
"""
)

# Masks that say how much of the inner size is left.
REMAINING = (
    HEADER
    + """@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(0, tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        at = step * BLOCK_K + inner
        a = tl.load(a_ptr + (rows % m)[:, None] * k + at[None, :], mask=inner[None, :] < left, other=0.0)
        b = tl.load(b_ptr + at[:, None] * n + (columns % n)[None, :], mask=inner[:, None] < k - step * BLOCK_K, other=0)
        total += tl.dot(a, b)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total, mask=inside)


def product(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n)
    product_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, n, k, BLOCK=16, BLOCK_K=16)
    return c
"""
)

# name -> (entry, source, inputs of two sizes: a list is the shape of a tensor)
SOURCES = {
    "one_pass_softmax": ("softmax", ONE_PASS_SOFTMAX, [[[5, 37]], [[3, 1500]]]),
    "one_pass_layer_norm": ("norm", ONE_PASS_LAYER_NORM, [[[5, 37], [37]], [[2, 1100], [1100]]]),
    "flat_tiles": ("outer", FLAT_TILES, [[[13], [45]], [[64], [64]]]),
    "column_sum": ("column_sum", COLUMN_SUM, [[[7, 45]], [[4, 64]]]),
    "in_place": ("scale", IN_PLACE, [[[97], 2.0], [[128], 0.5]]),
    "over_launched": ("double", OVER_LAUNCHED, [[[97]], [[128]]]),
    "rows_of_planes": ("planes", ROWS_OF_PLANES, [[[3, 5, 37]], [[2, 8, 64]]]),
    "tiles_of_rows": ("scaled", TILES_OF_ROWS, [[[7, 3, 5], [7]], [[8, 4, 16], [8]]]),
    "rows_in_place": ("centre", ROWS_IN_PLACE, [[[7, 37], [7]], [[8, 64], [8]]]),
    "two_launches": ("means", TWO_LAUNCHES, [[[5, 3, 37]], [[4, 2, 64]]]),
    "early_return": ("head", EARLY_RETURN, [[[97], 40], [[128], 16]]),
    "tuned": ("halve", TUNED, [[[97]], [[128]]]),
    "remaining": ("product", REMAINING, [[[5, 37], [37, 9]], [[16, 48], [48, 16]]]),
}

# Sources that no operator may stumble over: it returns None or a source that parses.
ODD_SOURCES = {
    "empty": "",
    "not Python": "def f(:\n",
    "no kernel": "def f(x):\n    return x\n",
    "null": "x = '\0'\n",
    "deep": "x = " + "(" * 150 + "1" + ")" * 150 + "\n",
    "long sum": "x = " + "+".join(["1"] * 400) + "\n",
    "never launched": HEADER + "@triton.jit\ndef k(x_ptr, BLOCK: tl.constexpr):\n    tl.store(x_ptr, 0)\n",
    "star arguments": HEADER
    + "@triton.jit\ndef k(x_ptr, BLOCK: tl.constexpr):\n    tl.store(x_ptr + tl.program_id(0), 0.0)\n\n"
    + "def f(x, *args, **kwargs):\n    k[(1,)](*args, **kwargs)\n"
    + "    k[1, 2](x, BLOCK=8)\n    k[(1,)](x, 1, 2, 3)\n    return x\n",
    "defaults": HEADER
    + "@triton.jit\ndef k(x_ptr, n=4, *, BLOCK: tl.constexpr = 8):\n    i = tl.program_id(axis=0)\n"
    + "    if i > n:\n        return\n    tl.store(x_ptr + i, 0.0, mask=i < n)\n\n"
    + "def f(x):\n    k[(4,)](x)\n    return x\n",
    "aliases": "import triton as t\nfrom triton import language as tl\n\n@t.jit\ndef k(x_ptr, B: tl.constexpr):\n"
    + "    tl.store(x_ptr + tl.arange(0, B), tl.exp(1.0))\n\ndef f(x):\n    k[(1,)](x, B=8)\n    return x\n",
    "shadowed": HEADER
    + "@triton.jit\ndef k(x_ptr, BLOCK: tl.constexpr):\n    tile = tl.program_id(0) + tl.program_id(1)\n"
    + "    tl.store(x_ptr + tile, tl.load(), 1)\n\n"
    + "def f(x):\n    for BLOCK in (8, 16):\n        k[(4, 4)](x, BLOCK=BLOCK)\n"
    + "    grid = 1, 2\n    k[grid](x, BLOCK=0x10)\n    return x\n",
    "thousands of launches": HEADER
    + "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n    tl.store(x_ptr + n, 0.0)\n\ndef f(x):\n"
    + "".join(f"    k[(x.numel() // {i},)](x, {i}, BLOCK={i})\n" for i in range(1, 2001))
    + "    return x\n",
    "thousands of functions": HEADER
    + "".join(f"@triton.jit\ndef k{i}(x_ptr):\n    k{i + 1}(x_ptr)\n\n" for i in range(2000))
    + "def f(x):\n    k0[(1,)](x)\n    return x\n",
}
