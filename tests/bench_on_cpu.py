"""The bench of a runner without a GPU: kernels are Python functions on addresses, and say how long they take.

Everything else is as on a GPU: memory, copies, poison, fingerprints, what is timed and compared, and when.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef
from fitness.gpu.runner import Report
from fitness.gpu.timing import Stopping
from fitness.tasks.task import load_task

SEED_OF_SECRETS = 1
N = {"one": 1024, "two": 512}

TASK = '''"""Twice as much."""
import torch
from fitness import Case

entry = "entry"
stress = {stress}
deterministic = {deterministic}
cases = [
    Case("one", {{"N": 1024}}, cpu_axes={{"N": 128}}),
    Case("two", {{"N": 512}}, cpu_axes={{"N": 128}}, role="holdout"),
]

def inputs(case, generator):
    return ({draw},)

{reference}
'''
REFERENCE = """def reference(x):
    return x * 2"""
DRAWN = 'torch.randn(case.axes["N"], generator=generator, device=generator.device)'
SEED = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y):
    tl.store(y, tl.load(x))

def entry(x):
    return x
"""

Function = Callable[[int, int, int], float]  # of the addresses of x and y and of their size; returns microseconds


def at(address: int, n: int, dtype: Any = np.float32) -> np.ndarray:
    """The memory there."""
    return np.ctypeslib.as_array((ctypes.c_char * (n * np.dtype(dtype).itemsize)).from_address(address)).view(dtype)


def doubling(us: float) -> Function:
    """What is right."""

    def function(x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2 * at(x, n)
        return us

    return function


def plan_of(n: int) -> LaunchPlan:
    x, y = (TensorRef(b, "float32", (n,), (1,)) for b in (0, 1))
    launch = Launch("kernel", (Config((1, 1, 1), {"x": x, "y": y, "n": n}, {}),), 3)
    return LaunchPlan((Buffer(4 * n, 0), Buffer(4 * n)), (x,), (y,), "tensor", (launch,))


class SeededSecrets:
    """In place of the module `secrets`: what the bench draws is the same in each run of a test."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def SystemRandom(self) -> random.Random:
        return self._random

    def randbelow(self, end: int) -> int:
        return self._random.randrange(end)

    def randbits(self, bits: int) -> int:
        return self._random.getrandbits(bits)


def pytorch_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of PyTorch is made anew at every replay; its results are where PyTorch puts them."""
    pytest.importorskip("cuda.bindings")
    from fitness.gpu import baselines

    monkeypatch.setattr(baselines, "captured_alone", lambda work: (SimpleNamespace(replay=work), []))
    monkeypatch.setattr(baselines, "demote_all", lambda: None)


class Event:
    """In place of `torch.cuda.Event`: what is between two of them takes as long as the kernels say to `us`."""

    us = 0.0  # of all kernels so far

    def __init__(self, **_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, stream: object) -> None:
        self.at = Event.us

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) / 1e3


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is its work, done anew at every replay; there is one stream, and nothing to wait for."""
    pytest.importorskip("cuda.bindings")
    from fitness.gpu import program

    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(program, "captured", lambda work: SimpleNamespace(replay=work))


class CpuBench:
    """`fitness.gpu.benchmark.Benchmark` on the CPU, with a seed kernel prepared, or PyTorch.

    seed: the seed kernel; or microseconds of a call of PyTorch, and the task has a reference alone.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, seed: Function | float, **task: Any) -> None:
        for name in ("cuda.bindings", "pynvml"):
            pytest.importorskip(name)
        from fitness.gpu import benchmark, buffers, paired_benchmark, programs, timer

        (folder / "task.py").write_text(
            TASK.format(**{"stress": False, "deterministic": True, "draw": DRAWN, "reference": REFERENCE, **task})
        )
        alone = not callable(seed)
        if not alone:
            (folder / "kernel.py").write_text(SEED)
        self.calls = 0  # of PyTorch

        class OnCpu(benchmark.Benchmark):
            def __init__(self) -> None:
                task, device = load_task(folder), torch.device("cpu")
                if alone:
                    task = replace(task, baseline=lambda x: (timed, (task.reference, x)))
                rates = {"dram_bytes_per_s": 1e12, "matmul_flops": 1e15, "copy_bytes_per_s": 1e12}
                facts: Any = SimpleNamespace(l2_bytes=0, name="CPU", capability=(9, 0), **rates)
                stream: Any = SimpleNamespace(synchronize=lambda: None, device=device)
                watch: Any = SimpleNamespace(read=lambda: None)
                self._set_up(task, device, facts, timer.Timer(task, stream, watch, 8, Stopping()))

            def _load(self, work: Any) -> Any:
                return loaded(work)

        def timed(reference: Any, x: torch.Tensor) -> torch.Tensor:
            Event.us += seed
            self.calls += 1
            return reference(x)  # type: ignore[no-any-return]

        def loaded(function: Function) -> Any:
            def launch(grid: Any, args: Any, scratch: Any, stream: Any) -> None:
                Event.us += function(args["x"], args["y"], args["n"])

            kernel = SimpleNamespace(scratch=lambda _: [], launch=launch, sets_priorities=False)
            found = programs.Loaded(SimpleNamespace(choices={name: [0] for name in N}))  # type: ignore[arg-type]
            found.bundle.plans = {name: plan_of(n) for name, n in N.items()}
            monkeypatch.setattr(found, "kernels", lambda case: [kernel])
            return found

        without_graphs(monkeypatch)
        pytorch_without_graphs(monkeypatch)
        for module in (buffers, paired_benchmark, timer):
            monkeypatch.setattr(module, "secrets", SeededSecrets(SEED_OF_SECRETS))
        monkeypatch.setattr(buffers, "EDGE", 1 << 12)  # less to look at
        monkeypatch.setattr(paired_benchmark, "FLOOR_COMPARISONS", 2)
        monkeypatch.setattr(timer, "disturbance", lambda *_: None)
        monkeypatch.setattr(timer, "PAUSE_S", 0)
        self.bench = OnCpu()
        self.prepared = self.bench.prepare(seed)  # type: ignore[arg-type]

    def evaluate(self, function: Function, seed: str = "1") -> Report:
        """Raises Stop."""
        return self.bench.evaluate(function, seed)  # type: ignore[arg-type]
