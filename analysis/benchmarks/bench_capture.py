"""Measures what watching costs a program: `python -m analysis.benchmarks.bench_capture [--steps N]`.

A step launches a small kernel 20 times through a host function, between small operators of PyTorch, so that the host
decides its time.  Steps with and without the watcher take turns in one process.  Prints the time of a step with and
without, their ratio with its interval, and what that is for one launch.

Without a GPU nothing can be launched, so stubs stand for Triton's launcher and for CUDA's events: then the time is that
of the watcher's own Python and of PyTorch's operators alone, and no ratio of a real program.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.jit import JITFunction

from evo.programs.watch import Watcher
from fitness.gpu.timing import paired_ratio

LAUNCHES = 20


@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), factor, BLOCK=1024)
    return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps: int = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    x = torch.randn(1 << 14, device="cuda" if gpu else "cpu")
    with contextlib.ExitStack() as stack:
        if not gpu:
            stack.enter_context(_without_launcher())
        alone, watched = _measure(x, steps)
    ratio = paired_ratio(alone, watched)
    with_us, without_us = (1e6 * statistics.median(times) for times in (watched, alone))
    what = "" if gpu else ", without launches: a stub stands for them"
    print(f"a step of {LAUNCHES} launches: {with_us:.0f} us watched, {without_us:.0f} us alone{what}")
    print(f"ratio {ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {ratio.pairs} pairs")
    print(f"{(with_us - without_us) / LAUNCHES:.1f} us for a launch")


def _measure(x: torch.Tensor, steps: int) -> tuple[list[float], list[float]]:
    """Returns seconds of steps alone and watched, taken alternately."""
    alone: list[float] = []
    watched: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(steps + 1):
            times = []
            for watching in (True, False) if number % 2 else (False, True):
                watcher = Watcher(Path(folder, str(number))) if watching else None
                if watcher is not None:
                    watcher.start()
                    _step(x)  # the first call of each kind is described
                begin = time.perf_counter()
                _step(x)
                times.append((watching, time.perf_counter() - begin))
                if watcher is not None:
                    watcher.stop()
                else:
                    _step(x)
            if number:
                for watching, seconds in times:
                    (watched if watching else alone).append(seconds)
    return alone, watched


def _step(x: torch.Tensor) -> None:
    for _ in range(LAUNCHES):
        x = scale(x, 1.0) + 0.0
    if x.is_cuda:
        torch.cuda.synchronize()


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """Has launches do nothing.  PyTorch says that there is a GPU, so they are watched."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """Calls the hooks of a launch, and launches nothing."""
        knobs.runtime.launch_enter_hook(None)
        knobs.runtime.launch_exit_hook(None)

    stream = mock.Mock(query=lambda: False)  # it has something to do
    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "is_initialized", lambda: True),
        mock.patch.object(torch.cuda, "get_device_name", lambda: "none"),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "current_stream", lambda device: stream),
        mock.patch.object(torch.cuda, "Event", _Event),
    ):
        yield


class _Event:
    """Stands for an event of CUDA; every launch takes a microsecond."""

    def __init__(self, enable_timing: bool) -> None:
        """Makes no event."""

    def record(self, stream: Any = None) -> None:
        """Records nothing."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: object) -> float:
        return 0.001


if __name__ == "__main__":
    main()
