"""Runs all jobs on a small candidate once, in the zygote, so that no child pays for first use.

First use of fake tensors, of Triton's compiler and of its interpreter costs a second or two; forks inherit the result.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fitness.frontend.memory import Layout
from fitness.frontend.plan import from_json

Job = Callable[[Mapping[str, Any], Path], Mapping[str, Any]]

SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(v):
    return v + v

@triton.autotune([triton.Config({"BLOCK": 16}, num_warps=4)], key=["n"])
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    square = i[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        tile = tl.load(x + square, mask=(i < n)[:, None], other=0.0)
        total += tl.dot(tile, tl.trans(tile))
    total = tl.exp(total - tl.max(total, 1)[:, None])
    tl.store(y + i, double(tl.sum(total, 1)), mask=i < n)

def run(x):
    x = x[:, :16].contiguous().to(torch.float16)
    y = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, x.shape[0])
    return torch.zeros_like(y), y
"""


def warm_up(jobs: Mapping[str, Job], target_name: str) -> None:
    """Runs `record`, then compile, interpret and trace as far as `jobs` has them, each on the results of `record`."""
    modules = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        argument = {"tensor": {"shape": [16, 20], "strides": [20, 1], "dtype": "float32"}}
        calls = [{"name": "warm", "args": [argument]}]
        payload = {"source": SOURCE, "entry": "run", "target": target_name, "calls": calls}
        recorded = jobs["record"](payload, scratch)
        common = {"source": SOURCE, "constants": recorded["constants"], "target": target_name}
        plan = recorded["plans"]["warm"]
        if "compile" in jobs:
            launches = [
                {"kernel": step["launch"], "args": config["args"], "options": config["options"]}
                for step in plan["steps"]
                if "launch" in step
                for config in step["configs"]
            ]
            jobs["compile"]({**common, "launches": launches}, scratch)
        if "interpret" in jobs:
            _interpret(jobs["interpret"], {**common, "plan": plan, "choice": [0]}, scratch)
        if "trace" in jobs:
            jobs["trace"]({**common, "samples": 1, "cases": [{"plan": plan, "integers": {}}]}, scratch)
    for name in set(sys.modules) - modules:
        if name.startswith("candidate"):
            del sys.modules[name]


def _interpret(job: Job, payload: Mapping[str, Any], scratch: Path) -> None:
    memory = Layout(from_json(payload["plan"])).create(scratch)
    job(payload, scratch)
    memory.close()
