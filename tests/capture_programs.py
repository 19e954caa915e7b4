"""Small programs with Triton kernels, for the tests of captures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from evo.programs.capture import Capture, read

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"

# A module with a host function that rebinds its argument and returns a number, an autograd function without one in its
# backward pass, and a kernel that gathers rows by index.
KERNELS = f'''{HEAD}
FACTOR = 2.0


def grid_of(n, block):
    return (triton.cdiv(n, block),)


@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


def scale(x, factor=FACTOR):
    x = x.contiguous()
    y = torch.empty_like(x)
    scale_kernel[grid_of(x.numel(), 32)](x, y, x.numel(), factor, BLOCK=32)
    return y, x.numel()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scale(x)[0]

    @staticmethod
    def backward(ctx, dy):
        dx = torch.empty_like(dy)
        scale_kernel[grid_of(dy.numel(), 32)](dy, dx, dy.numel(), 2.0, BLOCK=32)
        return dx


def around(x):
    """Encloses an autograd function, and names a kernel."""
    assert scale_kernel is not None
    return Scale.apply(x)


@triton.jit
def gather_kernel(x, index, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rows = tl.load(index + i, mask=i < n, other=0)
    tl.store(y + i, tl.load(x + rows, mask=i < n), mask=i < n)


def gather(x, index):
    y = torch.empty(index.numel(), device=x.device)
    gather_kernel[(1,)](x, index, y, index.numel(), BLOCK=256)
    return y


@triton.jit
def add_kernel(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def add_into(x, y, z):
    add_kernel[grid_of(x.numel(), 32)](x, y, z, x.numel(), BLOCK=32)
'''

PROGRAM = f"""{HEAD}
import kernels
from kernels import Scale, around, gather, scale

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def main_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def plus_one(x):
    y = torch.empty_like(x)
    main_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y


torch.manual_seed(0)
x = torch.randn(100, device=DEVICE, requires_grad=True)
for _ in range(2):
    y = plus_one(Scale.apply(x))
    Scale.apply(x).sum().backward()
around(x)
scale(torch.randn(8, 6, device=DEVICE).t(), factor=3.0)
gather(torch.randn(500, device=DEVICE), torch.randint(0, 500, (200,), device=DEVICE))
gather(torch.randn(500, device=DEVICE), torch.tensor([3, 1, 4, 1, 5], device=DEVICE))
a = torch.randn(64, device=DEVICE)
kernels.add_into(a, a, a)
kernels.add_into(a[:32], a[16:48], torch.empty(32, device=DEVICE))
print("sum", round(float(y.detach().sum()) + float(a.sum()), 3))
"""

AUTOTUNED = f"""{HEAD}

@triton.autotune(configs=[triton.Config({{"BLOCK": b}}, num_warps=w) for b, w in ((32, 4), (64, 2))], key=["n"])
@triton.heuristics({{"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}})
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + i, tl.load(x + i) * 2)
    else:
        tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def double(x):
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


if __name__ == "__main__":
    for n in (96, 100, 128):
        for _ in range(2):
            y = double(torch.randn(n, device="cuda"))
    print("last", n)
"""


def write(folder: Path) -> Path:
    """Writes the programs into a folder, and returns it."""
    for name, text in (("kernels", KERNELS), ("program", PROGRAM), ("autotuned", AUTOTUNED)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, *words: str, interpreted: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m evo` with these words in a folder."""
    env = {**os.environ, **variables}
    if interpreted:
        env["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "evo", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def captured(folder: Path, out: str, *program: str, interpreted: bool = True, options: tuple[str, ...] = ()) -> Capture:
    """Captures a program in a folder, and returns the capture."""
    done = run(folder, "capture", "--out", out, *options, "--", sys.executable, *program, interpreted=interpreted)
    assert done.returncode == 0, done.stderr
    return read(folder / out)


def listed(done: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    """Returns the kernels that `evo capture --json` listed, by name."""
    return {kernel["kernel"]: kernel for kernel in json.loads(done.stdout)["kernels"]}
