"""What the watcher counts and times, with Triton's own tuner; a stub stands for the launch, and for CUDA's events."""

from __future__ import annotations

import itertools
import random
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
from evo.programs.times import AHEAD_CYCLES
from evo.programs.watch import FIRST, MOST, Watcher

CLOCK = itertools.count()
LAUNCHED: list[dict[str, Any]] = []


class Stream:
    """The current stream of GPU 0; `idle`: whether it has nothing to do."""

    idle = False

    def query(self) -> bool:
        return self.idle


STREAM = Stream()


class Event:
    """Counts instead of time: a launch between two events takes a millisecond, or more, see `launch`."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = 0

    def record(self, stream: Any) -> None:
        assert stream is STREAM
        self.at = next(CLOCK)

    def query(self) -> bool:
        return False  # nothing is known before the end

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


def launch(kernel: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Stands for `JITFunction.run`: calls the hooks that Triton's launcher calls, and does the kernel's work.

    It takes a millisecond more for every 100 of `n`.
    """
    LAUNCHED.append({**kwargs, "hooked": bool(knobs.runtime.launch_enter_hook.calls)})
    knobs.runtime.launch_enter_hook(None)
    for _ in range(args[1] // 100):
        next(CLOCK)
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


def uneven(x, factor):
    for n in (10, 1000):
        plain_kernel[(1,)](x, n, BLOCK=32)


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
    monkeypatch.setattr(torch.cuda, "current_stream", {0: STREAM}.__getitem__)
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


def test_a_gpu_without_work_waits_before_a_launch_that_is_timed(
    watched: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the host has the launch enqueued: its time would count otherwise."""
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", waits.append)
    for idle, expected in ((False, []), (True, [AHEAD_CYCLES])):
        monkeypatch.setattr(STREAM, "idle", idle)
        plain_kernel[(1,)](torch.ones(10), 10, BLOCK=32)
        assert waits == expected


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


def test_a_fault_at_an_event_does_not_reach_the_program(watched: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "record", lambda event, stream: 1 / 0)
    x = torch.ones(10)
    host(x)
    assert not bool(x.any()) and watched.troubles == ["ZeroDivisionError: division by zero"]
    assert not knobs.runtime.launch_enter_hook.calls + knobs.runtime.launch_exit_hook.calls


def test_of_launches_that_are_alike_the_first_and_a_share_are_timed(watched: Watcher, tmp_path: Path) -> None:
    x, state = torch.ones(10), random.getstate()
    LAUNCHED.clear()
    for n in [10] * 1000 + [1000] * 20:
        plain_kernel[(1,)](x, n, BLOCK=32)
    hooked = [launch["hooked"] for launch in LAUNCHED]
    assert all(hooked[:FIRST]) and all(hooked[1000 : 1000 + FIRST])
    assert 80 < sum(hooked[FIRST:1000]) < 170, "one in eight of 984"
    assert random.getstate() == state, "the program draws the same numbers"
    kernel = seen(watched, tmp_path).kernel("plain_kernel")
    assert {call.arguments[-2]["value"]: call.gpu_us for call in kernel.calls} == {10: 1e6, 1000: 220e3}
    assert (kernel.launches, kernel.gpu_us) == (1020, 1.22e6), "the long ones, timed more often, do not count more"


def test_each_call_of_a_host_function_has_times_of_its_own(watched: Watcher, tmp_path: Path) -> None:
    """Also one whose launches are like those of calls before it."""
    x = torch.ones(10)
    for factor in [1.0] * 500 + [2.0]:
        uneven(x, factor)
    (function,) = seen(watched, tmp_path).hosts.values()
    assert [(call.count, call.gpu_us) for call in function.calls] == [(500, 6e6), (1, 12e3)], "1 and 11 ms each"


def test_launches_of_different_arguments_are_right_in_the_mean(watched: Watcher, tmp_path: Path) -> None:
    """Calls beyond those that are kept are timed as if they were alike; turns are by chance, not by a period."""
    x = torch.ones(10)
    for n in range(MOST):
        plain_kernel[(1,)](x, n, BLOCK=32)
    for _ in range(1000):
        for n in (64, 1064):
            plain_kernel[(1,)](x, n, BLOCK=32)
    kernel = seen(watched, tmp_path).kernel("plain_kernel")
    assert kernel.rest == 2000 and kernel.gpu_us == pytest.approx(64e3 + 1e6 + 11e6, rel=0.15)


def test_launches_into_a_graph_take_the_mean_of_the_others(
    watched: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(10)
    for capturing, launches in ((False, 40), (True, 60)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        for _ in range(launches):
            host(x)
    capture = seen(watched, tmp_path)
    kernel = capture.kernel("plain_kernel")
    assert (kernel.launches, kernel.in_graphs, kernel.gpu_us) == (200, 120, 200e3)
    (function,) = capture.hosts.values()
    assert [(call.count, call.gpu_us) for call in function.calls] == [(100, 200e3)]


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
