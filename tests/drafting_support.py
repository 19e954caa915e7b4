"""A kernel file, and what a scripted model answers for it."""

from __future__ import annotations

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * factor, mask=i < n)


def scale(x, factor: float, block=64):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), factor, BLOCK=block)
    return y
"""

TASK = '''"""A vector times a number."""

import torch
from fitness import Case

entry = "scale"
cases = [
    Case("long", {"N": 65536}, cpu_axes={"N": 256}),
    Case("odd", {"N": 1777}, role="holdout", cpu_axes={"N": 77}),
]


def inputs(case, generator):
    x = torch.randn(case.axes["N"], generator=generator, device=generator.device, dtype=getattr(torch, case.dtype))
    return x, 2.0


def reference(x, factor):
    return x * factor
'''
WRONG = TASK.replace("x * factor", "x + factor")
MALICIOUS = TASK.replace(
    "def reference",
    'import socket\nsocket.create_connection(("127.0.0.1", 9))\nsecret = open("/etc/passwd").read()\n\n\ndef reference',
)


def answer(task: str) -> str:
    return f"It scales a vector.\n\n```python\n{task}```\n"
