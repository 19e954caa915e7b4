"""Evaluates one candidate in a process of its own, as other evaluators do: bench_gpu compares evo's rate with it.

    python -m analysis.benchmarks.process_per_candidate CANDIDATE.py SEED.py

Imports PyTorch and Triton, makes a CUDA context and compiles both kernels.  Then it verifies the candidate on 3 fresh
inputs against softmax in float64, and takes 30 timings alternating with the seed, from a cold cache.  Prints the median
ratio.  Fewer checks than evo makes: no poisoned memory, no guard zones, no stress variants, no sandbox.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

INPUTS, PAIRS, SIZE = 3, 30, 8192
TOLERANCE = 1e-5  # of float32 softmax


def load(path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[torch.Tensor], torch.Tensor] = module.softmax
    return function


def microseconds(work: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, cold: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cold.zero_()
    begin.record()
    work(x)
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def main() -> None:
    candidate, seed = (load(Path(path)) for path in sys.argv[1:3])
    cold = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(INPUTS):
        x = torch.randn(SIZE, SIZE, device="cuda")
        torch.testing.assert_close(candidate(x).double(), torch.softmax(x.double(), 1), rtol=TOLERANCE, atol=TOLERANCE)
    seed(x)
    pairs = [(microseconds(candidate, x, cold), microseconds(seed, x, cold)) for _ in range(PAIRS)]
    print(statistics.median(theirs / own for own, theirs in pairs))


if __name__ == "__main__":
    main()
