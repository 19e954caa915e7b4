"""What the watcher counts and times, with Triton's own tuner; a stub stands for the launch, and for CUDA's events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.jit import JITFunction

from evo.programs.capture import Capture, read
from evo.programs.watch import MOST, Watcher

CLOCK = itertools.count()
LAUNCHED: list[dict[str, Any]] = []


class Event:
    """Counts instead of time: a launch between two events takes a millisecond."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = 0

    def record(self) -> None:
        self.at = next(CLOCK)

    def query(self) -> bool:
        return False  # nothing is known before the end

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


def launch(kernel: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Stands for `JITFunction.run`: calls the hooks that Triton's launcher calls, and does the kernel's work."""
    LAUNCHED.append(kwargs)
    knobs.runtime.launch_enter_hook(None)
    knobs.runtime.launch_exit_hook(None)
    args[0].zero_()


@triton.jit
def plain_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


def bench(call: Any, quantiles: Any) -> list[float]:
    for _ in range(3):
        call()
    return [float(LAUNCHED[-1]["BLOCK"])] * 3  # the smallest block is the fastest


@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 32)], key=["n"], do_bench=bench)
@triton.jit
def tuned_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


def host(x, factor=1.0):
    plain_kernel[(1,)](x, x.numel(), BLOCK=32)
    plain_kernel[(2,)](x, x.numel(), BLOCK=32)


def branching(x):
    if x.is_cuda:
        plain_kernel[(1,)](x, x.numel(), BLOCK=32)
    return x * 2


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    watcher = Watcher(tmp_path)
    watcher.start()
    yield watcher
    watcher.stop()
    assert host.__module__ == __name__ and not hasattr(host, "__wrapped__"), "the function is in its place again"


def seen(watcher: Watcher, folder: Path) -> Capture:
    watcher.write()
    assert watcher.troubles == []
    return read(folder)


def test_trial_launches_of_a_tuner_do_not_count(watched: Watcher, tmp_path: Path) -> None:
    for n in (10, 10, 20):
        tuned_kernel[(1,)](torch.ones(n), n)
    kernel = seen(watched, tmp_path).kernel("tuned_kernel")
    assert len(LAUNCHED) > 3 * 2 * 2 and kernel.launches == 3
    assert kernel.gpu_us == 3000.0, "one millisecond each"
    assert sum(kernel.configs.values()) == 3 and all("BLOCK: 32" in config for config in kernel.configs)
    assert {call.arguments[-1]["value"] for call in kernel.calls} == {32}


def test_a_call_of_a_host_function_has_the_time_of_all_its_launches(watched: Watcher, tmp_path: Path) -> None:
    x = torch.ones(10)
    for factor in (1.0, 1.0, 2.0):
        host(x, factor=factor)
    (function,) = seen(watched, tmp_path).hosts.values()
    assert [(call.arguments[1]["value"], call.count, call.gpu_us) for call in function.calls] == [
        (1.0, 2, 4000.0),
        (2.0, 1, 2000.0),
    ]
    first = function.calls[0].arguments[0]["tensor"]
    assert first["value"] == 1.0, "values are described before the kernel writes to them"


def test_a_call_with_defaults_left_out_is_the_same_call(watched: Watcher, tmp_path: Path) -> None:
    host(torch.ones(10))
    host(x=torch.ones(10), factor=1.0)
    (function,) = seen(watched, tmp_path).hosts.values()
    assert [call.count for call in function.calls] == [2]


def test_more_distinct_calls_than_are_kept_are_counted(watched: Watcher, tmp_path: Path) -> None:
    for n in range(1, MOST + 4):
        host(torch.ones(n))
    (function,) = seen(watched, tmp_path).hosts.values()
    assert (len(function.calls), function.rest) == (MOST, 3)


def test_a_fault_of_the_watcher_does_not_reach_the_program(watched: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.programs.watch.key_of", lambda values: 1 / 0)
    x = torch.ones(10)
    host(x)
    assert not bool(x.any()) and watched.troubles == ["ZeroDivisionError: division by zero"]


def test_launches_into_a_graph_are_not_timed(watched: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    host(torch.ones(10))
    capture = seen(watched, tmp_path)
    kernel = capture.kernel("plain_kernel")
    assert (kernel.launches, kernel.in_graphs, kernel.gpu_us) == (2, 2, None)
    assert "CUDA graph" in capture.hosts[f"{__name__}.host"].calls[0].trouble


def test_torch_compile_sees_the_function_itself(watched: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # for Dynamo, which would ask the GPU more

    def both(x: torch.Tensor) -> torch.Tensor:
        return branching(x) + 1

    compiled = torch.compile(both, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert hasattr(branching, "__wrapped__"), "it is watched"
