"""Times launches by CUDA events that are read later, so that the program never waits for the GPU."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Spent = Callable[[float], None]  # gets microseconds
Safely = Callable[..., Any]  # safely(function, *arguments) returns what the function does, or None if it fails
_MOST_OPEN = 4096  # launches whose times are not read yet
_READ_AT_ONCE = 64
# Clock cycles of a GPU for which it waits before a launch if it has nothing to do, about 80 us: the host then has the
# launch and both events enqueued before the first is passed.  Otherwise they would time the host.
AHEAD_CYCLES = 150_000


class _Local(threading.local):
    """The launch of one thread that is timed: for whom, and its begin."""

    spent: Spent | None = None
    begin: tuple[int, Any, Any] | None = None


class LaunchTimer:
    """Records an event before and after each launch, by Triton's launch hooks: compiling lies outside of both."""

    def __init__(self, safely: Safely) -> None:
        """Keeps `safely`, by which all is called: faults do not reach the program."""
        import torch
        from triton import knobs

        self._torch, self._runtime, self._safely = torch, knobs.runtime, safely
        self._open: deque[tuple[int, Any, Any, Spent]] = deque()
        self._free: dict[int, list[Any]] = {}  # events by device
        self._lock = threading.Lock()
        self._hooked = 0  # launches under way that are timed, of all threads
        self._local = _Local()

    @contextmanager
    def launch(self, spent: Spent) -> Iterator[None]:
        """Times the launch that Triton makes inside, if it makes one, for `spent`."""
        local = self._local
        before, local.spent, local.begin = local.spent, spent, None
        self._safely(self._hook, 1)
        try:
            yield
        finally:
            self._safely(self._hook, -1)
            local.spent, local.begin = before, None

    def _hook(self, more: int) -> None:
        """Has the hooks in place only during launches that are timed.

        Inductor has a slower launcher for its kernels if there are hooks.
        """
        enter, leave = self._runtime.launch_enter_hook, self._runtime.launch_exit_hook
        with self._lock:
            self._hooked += more
            if self._hooked == 0:
                enter.remove(self._enter)
                leave.remove(self._exit)
            else:
                enter.add(self._enter)
                leave.add(self._exit)

    @contextmanager
    def around(self, spent: Spent) -> Iterator[None]:
        """Times what is inside, for launches that have no hooks."""
        begin = self._safely(self._begun)
        try:
            yield
        finally:
            if begin is not None:
                self._safely(self._closed, begin, spent)

    def _enter(self, metadata: Any) -> None:
        if self._local.spent is not None:
            self._local.begin = self._safely(self._begun)

    def _exit(self, metadata: Any) -> None:
        spent, begin = self._local.spent, self._local.begin
        if spent is not None and begin is not None:
            self._local.begin = None
            self._safely(self._closed, begin, spent)

    def _begun(self) -> tuple[int, Any, Any]:
        """Returns the device and the stream of a launch that begins, and an event on it."""
        device = self._torch.cuda.current_device()
        stream = self._torch.cuda.current_stream(device)  # without a number it would ask which devices there are
        if stream.query():
            self._torch.cuda._sleep(AHEAD_CYCLES)
        return device, stream, self._event(device, stream)

    def _event(self, device: int, stream: Any) -> Any:
        with self._lock:
            free = self._free.setdefault(device, [])
            event = free.pop() if free else self._torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _closed(self, begin: tuple[int, Any, Any], spent: Spent) -> None:
        device, stream, first = begin
        end = self._event(device, stream)
        with self._lock:
            self._open.append((device, first, end, spent))
            for _ in range(_READ_AT_ONCE if len(self._open) > _MOST_OPEN else 2):
                if not self._open or not self._open[0][2].query():
                    break
                self._read()

    def _read(self) -> None:
        device, begin, end, spent = self._open.popleft()
        spent(begin.elapsed_time(end) * 1000)
        self._free[device] += [begin, end]

    def finish(self) -> None:
        """Waits for the GPU and reads all times."""
        with self._lock:
            while self._open:
                self._open[0][2].synchronize()
                self._read()
