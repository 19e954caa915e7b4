"""A task of one row-wise kernel, and right, wrong and broken candidates for it (for tests that need a GPU)."""

TASK = '''"""x * 2 + row sum of x, float32."""
import torch
from fitness import Case

entry = "shifted"
cases = [
    Case("small", {"M": 256, "N": 1024}, cpu_axes={"M": 4, "N": 128}),
    Case("large", {"M": 8192, "N": 4096}, cpu_axes={"M": 4, "N": 128}),
    Case("odd", {"M": 77, "N": 1003}, role="holdout", cpu_axes={"M": 3, "N": 99}),
]

def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x * 2 + x.sum(1, keepdim=True)

def bytes(case):
    return 2 * 4 * case.axes["M"] * case.axes["N"]

def flops(case):
    return 3 * case.axes["M"] * case.axes["N"]
'''

_KERNEL = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, o, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    c = tl.arange(0, BLOCK)
    mask = c < n
{body}

def shifted(x):
    o = torch.empty_like(x)
    kernel[(x.shape[0],)](x, o, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8{options})
    return o
"""


def source(body: str, options: str = "") -> str:
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return _KERNEL.format(body=lines, options=options)


ONE_PASS = """
v = tl.load(x + row + c, mask=mask, other=0.0)
tl.store(o + row + c, v * 2 + tl.sum(v, 0), mask=mask)
"""

# Reads each row eight times more than needed.
SEED = source(
    """
v = tl.load(x + row + c, mask=mask, other=0.0)
total = 0.0
for again in range(8):
    v = tl.load(x + row + c, mask=mask, other=0.0, volatile=True)
    total += tl.sum(v, 0)
tl.store(o + row + c, v * 2 + total / 8, mask=mask)
"""
)

# Tensor descriptors live in global scratch memory, and want rows of whole 16 bytes.
DESCRIPTORS = source(
    """
if ALIGNED:
    tl.static_assert(BLOCK % 4 == 0)
    i = tl.make_tensor_descriptor(x, [tl.num_programs(0), n], [n, 1], [1, BLOCK])
    v = tl.reshape(i.load([tl.program_id(0), 0]), [BLOCK])
else:
    v = tl.load(x + row + c, mask=mask, other=0.0)
tl.store(o + row + c, v * 2 + tl.sum(v, 0), mask=mask)
""",
    ", ALIGNED=x.shape[1] % 4 == 0",
).replace("BLOCK: tl", "ALIGNED: tl.constexpr, BLOCK: tl")

CLUSTERS = """import torch
import triton
import triton.language as tl

@triton.jit
def totals(x, t, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    tl.store(t + row, tl.sum(tl.load(x + row * n + c, mask=c < n, other=0.0), 0))

@triton.jit
def add(x, t, o, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    total = tl.load(t + row)
    tl.store(o + row * n + c, tl.load(x + row * n + c, mask=c < n) * 2 + total, mask=c < n)

def shifted(x):
    o, t = torch.empty_like(x), torch.empty(x.shape[0], device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    totals[(x.shape[0],)](x, t, x.shape[1], BLOCK=block)
    add[(x.shape[0],)](x, t, o, x.shape[1], BLOCK=block, num_ctas=2)
    return o
"""

RIGHT = {
    "one pass": source(ONE_PASS),
    "two kernels, one in clusters": CLUSTERS,
    "descriptors made on the device": DESCRIPTORS,
}

# candidate -> text of the message that must say so
WRONG = {
    "nothing written": (source("pass"), "nothing has written"),
    "zeros": (source("tl.store(o + row + c, c * 0.0, mask=mask)"), "wrong"),
    "last element missing": (
        source("v = tl.load(x + row + c, mask=mask, other=0.0)\nt = tl.sum(v, 0)\n"
               "tl.store(o + row + c, v * 2 + t, mask=c < n - 1)"),
        "nothing has written",
    ),
    "part of the input ignored": (
        source("v = tl.load(x + row + c, mask=mask, other=0.0)\n"
               "t = tl.sum(tl.where(c < n - 1, v, 0.0), 0)\ntl.store(o + row + c, v * 2 + t, mask=mask)"),
        "wrong",
    ),
    "input overwritten": (
        source(ONE_PASS + "tl.store(x + row + c, v * 2, mask=mask & (tl.program_id(0) == 0))"), "was modified",
    ),
    "stores beyond the end": (
        source(ONE_PASS + "last = tl.num_programs(0).to(tl.int64) * n\n"
               "tl.store(o + last + c, v, mask=(c < 8) & (tl.program_id(0) == 0))"),
        "out of bounds",
    ),
    "half precision inside": (
        source("v = tl.load(x + row + c, mask=mask, other=0.0).to(tl.float16).to(tl.float32)\n"
               "tl.store(o + row + c, v * 2 + tl.sum(v, 0), mask=mask)"),
        "wrong",
    ),
    "race": (
        source(ONE_PASS + "t = tl.load(o + c, mask=mask, other=0.0, volatile=True)\n"
               "tl.store(o + c, tl.where(t == t, v, t), mask=mask)"),
        "",
    ),
}  # fmt: skip

# Adds the parts of a row in whatever order the programs come: right within rounding, another result every time.
ATOMIC = """import torch
import triton
import triton.language as tl

@triton.jit
def totals(x, t, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(t + row, tl.sum(tl.load(x + row * n + c, mask=c < n, other=0.0), 0))

@triton.jit
def add(x, t, o, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    tl.store(o + row * n + c, tl.load(x + row * n + c, mask=c < n) * 2 + tl.load(t + row), mask=c < n)

def shifted(x):
    m, n = x.shape
    o, t = torch.empty_like(x), torch.zeros(m, device=x.device)
    totals[(m, triton.cdiv(n, 16))](x, t, n, BLOCK=16, num_warps=1)
    add[(m,)](x, t, o, n, BLOCK=triton.next_power_of_2(n))
    return o
"""

# Skips its work where the output already holds numbers: it never does where NaN was filled in before the replay.
MEMO = source(
    """
old = tl.load(o + row + c, mask=mask, other=0.0)
if tl.sum((old != old).to(tl.int32), 0) > 0:
    v = tl.load(x + row + c, mask=mask, other=0.0)
    total = 0.0
    for again in range(8):
        v = tl.load(x + row + c, mask=mask, other=0.0, volatile=True)
        total += tl.sum(v, 0)
    tl.store(o + row + c, v * 2 + total / 8, mask=mask)
"""
)

ILLEGAL = source(ONE_PASS + "tl.store(o + row + c + 17592186044416, v, mask=mask)")

ENDLESS = source(
    ONE_PASS
    + """
seen = tl.load(o + row, volatile=True)
while seen == seen:
    seen = tl.load(o + row, volatile=True)
"""
)

# One execution takes about a second: each load waits for the one before.
CRAWLING = source(
    ONE_PASS
    + """
seen = tl.load(o + row, volatile=True)
for again in range(3_000_000):
    seen = tl.load(o + row + (seen > 1e30).to(tl.int32), volatile=True)
tl.store(o + row, seen, mask=seen > 1e30)
"""
)

AUTOTUNED = """import torch
import triton
import triton.language as tl

@triton.autotune(
    configs=[triton.Config({"AGAIN": 64}, num_warps=1), triton.Config({"AGAIN": 1}, num_warps=8)], key=["n"]
)
@triton.jit
def kernel(x, o, n, AGAIN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    c = tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row + c, mask=mask, other=0.0)
    total = 0.0
    for again in range(AGAIN):
        v = tl.load(x + row + c, mask=mask, other=0.0, volatile=True)
        total += tl.sum(v, 0)
    tl.store(o + row + c, v * 2 + total / AGAIN, mask=mask)

def shifted(x):
    o = torch.empty_like(x)
    kernel[(x.shape[0],)](x, o, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return o
"""
