"""Plans of one launch, and their traces, for the tests of trace and estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fitness.estimate import trace
from fitness.estimate.launch_trace import LaunchTrace, Traffic
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef, to_json

HEADER = "import triton\nimport triton.language as tl\n"


def tensor(buffer: int, *shape: int, dtype: str = "float32", strides: tuple[int, ...] = ()) -> TensorRef:
    """A contiguous tensor (or one with the given strides) that fills buffer `buffer`."""
    contiguous = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return TensorRef(buffer, dtype, shape, strides or contiguous)


def plan_of(
    kernel: str,
    grid: tuple[int, ...],
    args: dict[str, Any],
    outputs: tuple[str, ...] = (),
    configs: list[dict[str, Any]] | None = None,
    options: dict[str, Any] | None = None,
) -> LaunchPlan:
    """One launch.  Tensors not named in `outputs` are arguments of the entry; `configs` override `args` and "grid"."""
    refs = {name: ref for name, ref in args.items() if isinstance(ref, TensorRef)}
    inputs = [name for name in refs if name not in outputs]
    buffers = {
        ref.buffer: Buffer(ref.last_byte(), inputs.index(name) if name in inputs else None)
        for name, ref in refs.items()
    }
    made = []
    for override in configs or [{}]:
        changed = {k: v for k, v in override.items() if k != "grid"}
        full = (*override.get("grid", grid), 1, 1)[:3]
        made.append(Config(full, {**args, **changed}, options or {}))
    return LaunchPlan(
        buffers=tuple(buffers[b] for b in sorted(buffers)),
        inputs=tuple(refs[name] for name in inputs),
        outputs=tuple(refs[name] for name in outputs),
        structure="tensor" if len(outputs) == 1 else "tuple" if outputs else "none",
        steps=(Launch(kernel, tuple(made)),),
    )


def traces_of(
    source: str,
    plan: LaunchPlan,
    scratch: Path,
    integers: dict[int, np.ndarray] | None = None,
    samples: int = 8,
    *,
    closer: bool = False,
) -> list[list[LaunchTrace]]:
    """What `fitness.estimate.trace.job` finds, by launch and configuration."""
    names = {}
    for index, values in (integers or {}).items():
        np.save(scratch / f"integers-{index}.npy", values)
        names[str(index)] = f"integers-{index}.npy"
    payload = {
        "source": HEADER + source,
        "constants": {},
        "samples": samples,
        "closer": closer,
        "cases": [{"plan": to_json(plan), "integers": names}],
    }
    found = trace.job(payload, scratch)["cases"][0]["launches"]
    return [[LaunchTrace.from_dict(t) for t in by_config] for by_config in found]


def trace_of(source: str, plan: LaunchPlan, scratch: Path, **more: Any) -> LaunchTrace:
    """The trace of the only configuration of the only launch."""
    return traces_of(source, plan, scratch, **more)[0][0]


def traffic(found: LaunchTrace, buffer: int, kind: str) -> Traffic:
    return next(t for t in found.traffic if (t.buffer, t.kind) == (buffer, kind))


COPY = """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)
"""

SIN = """
@triton.jit
def sine(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)
"""

TILES = """
@triton.jit
def tiles(x, y, stride_m, stride_n, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    at = m[:, None] * stride_m + n[None, :] * stride_n
    tl.store(y + at, tl.load(x + at))
"""

SOFTMAX = """
@triton.jit
def softmax(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + at, mask=at < N, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * N + at, e / tl.sum(e, 0), mask=at < N)
"""

SOFTMAX3 = """
@triton.jit
def softmax3(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = float("-inf")
    for b in range(0, N, BLOCK):
        at = b + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.max(tl.load(x + row * N + at, mask=at < N, other=float("-inf")), 0))
    total = 0.0
    for b in range(0, N, BLOCK):
        at = b + tl.arange(0, BLOCK)
        total += tl.sum(tl.exp(tl.load(x + row * N + at, mask=at < N, other=float("-inf")) - top), 0)
    for b in range(0, N, BLOCK):
        at = b + tl.arange(0, BLOCK)
        e = tl.exp(tl.load(x + row * N + at, mask=at < N, other=float("-inf")) - top)
        tl.store(y + row * N + at, e / total, mask=at < N)
"""

MATMUL = """
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    m = (pid // columns) * BM + tl.arange(0, BM)
    n = (pid % columns) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    pa = a + m[:, None] * K + k[None, :]
    pb = b + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16))
"""
