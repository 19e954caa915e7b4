"""A context and parents for tests of operators that ask a model; no task is loaded, no compiler runs."""

from __future__ import annotations

import random
from typing import Any

from evo.core.records import Build, Finding, Hint, Profile, Timing, Verdict
from operators.base import Parent
from operators.llm.base import InFlight, LlmContext, TaskFacts, Tried

SOURCE = """import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    v = tl.load(x + i, mask=mask)
    tl.store(y + i, v * 2, mask=mask)


def double(x):
    y = torch.empty_like(x)
    n = x.numel()
    double_kernel[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
    return y
"""
OTHER = SOURCE.replace("BLOCK=256", "BLOCK=1024").replace("(n, 256)", "(n, 1024)")

TASK = TaskFacts(
    name="double",
    entry="double",
    reference="import torch\n\ndef reference(x):\n    return 2 * x\n",
    title="Twice a vector.",
    parameters=("x",),
    cases=("long (tune; N=16777216): x: float32 (16777216,)", "odd (holdout; N=1003): x: float32 (1003,)"),
    says="x: (N,)",
    layout="Tensors are row-major and contiguous.",
    values=("x: mean 0, standard deviation 1, from -4.1 to 4.2",),
    right=("Right is what the reference below computes in float64.", "No argument may be changed."),
    allowed=("All computing is done by the candidate's own kernels.",),
    work={"long": {"bytes": 134217728.0, "flops": 16777216.0, "least_us": 30.0}},
)
TIMINGS = (Timing("long", (60.0, 61.0, 62.0), (91.5,), 1.5, (1.4, 1.6), False),)
BUILD = Build("double_kernel", 18, 0, 0, 4, 1.0, "ab12", instructions={"loads": 2, "stores": 2, "load_bytes": 4})
PROFILE = Profile(
    tier="counters-free",
    bottleneck="memory",
    reason="2.10 of 4.20 TB/s that a copy reaches, and little arithmetic.",
    numbers={"memory throughput, % of a copy's": 50.0, "widest load, bytes": 4.0},
    roofline=0.48,
    before={"memory throughput, % of a copy's": 31.0},
    hints=(Hint("wider-loads", "Let each thread load 16 bytes at once: larger blocks, contiguous offsets."),),
    kernel="double_kernel",
    metrics={"gb_per_s": 2100.0, "registers": 18.0},
)
HISTORY = (
    Tried(
        "mutate",
        "load twice as much per program",
        Verdict.OK,
        speedup=1.21,
        parent_speedup=1.0,
        parents=(0,),
        per_case={"long": 1.1, "short": 1.331},
    ),
    Tried("mutate", "use shared memory", Verdict.COMPILE_ERROR, "name 'shared' is not defined\nmore", parents=(3,)),
    Tried("explore", "two rows a program", None, parents=(3,)),
)
FLYING = (InFlight("mutate", (3,), "Look first at registers."), InFlight("crossover", (3, 0), ""))


def context(number: int = 0, **changes: Any) -> LlmContext:
    values: dict[str, Any] = {
        "rng": random.Random(number),
        "task": TASK,
        "hardware": {"GPU": "NVIDIA H200 (compute capability 9.0)", "memory bandwidth": "4.80 TB/s"},
        "rules": ("import: imports at the top level", "delegate: computing is done by the candidate's kernels"),
        "triton": "3.6.0",
        "allowed": ("Timed is one call of the host function.",),
        "history": HISTORY,
        "flying": FLYING,
        "profiles": {3: PROFILE},
    }
    return LlmContext(**values | changes)


def parent(index: int = 3, source: str = SOURCE, **changes: Any) -> Parent:
    values: dict[str, Any] = {
        "speedup": 1.5,
        "per_case": {"long": 1.5, "short": 1.5},
        "builds": (BUILD,),
        "timings": TIMINGS,
    }
    return Parent(index, source, **values | changes)


def failed(verdict: Verdict = Verdict.COMPILE_ERROR, source: str = SOURCE, **changes: Any) -> Parent:
    values: dict[str, Any] = {
        "speedup": 0.0,
        "verdict": verdict,
        "stage": "compile",
        "message": "kernel double_kernel: arange's range must be a power of 2",
        "findings": (Finding("delegate", 17, "torch.sum computes on the host"),),
    }
    return Parent(4, source, **values | changes)


def parents_of(name: str) -> list[Parent]:
    """Parents to which the operator of that name applies."""
    better = parent(5, OTHER, speedup=1.4, per_case={"long": 1.2, "short": 1.7})
    return {"mutate": [parent()], "explore": [parent()], "crossover": [parent(), better], "repair": [failed()]}.get(
        name, []
    )
