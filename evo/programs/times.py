"""Times launches by CUDA events that are read later, so that the program never waits for the GPU."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Spent = Callable[[float], None]  # gets microseconds
_MOST_OPEN = 4096  # launches whose times are not read yet
_READ_AT_ONCE = 64


class LaunchTimer:
    """Records an event before and after each launch, by Triton's launch hooks: compiling lies outside of both."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._open: deque[tuple[int, Any, Any, Spent]] = deque()
        self._free: dict[int, list[Any]] = {}  # events by device
        self._lock = threading.Lock()
        self._local = threading.local()

    @contextmanager
    def launch(self, spent: Spent) -> Iterator[None]:
        """Times the launch that Triton makes inside, if it makes one, for `spent`."""
        from triton import knobs

        runtime = knobs.runtime
        # Only during this launch: Inductor has a slower launcher for its kernels if there are hooks.
        runtime.launch_enter_hook.add(self._enter)
        runtime.launch_exit_hook.add(self._exit)
        self._local.spent = spent
        try:
            yield
        finally:
            self._local.spent = None
            runtime.launch_enter_hook.remove(self._enter)
            runtime.launch_exit_hook.remove(self._exit)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Times no launch inside: those by which a tuner measures."""
        before, self._local.spent = getattr(self._local, "spent", None), None
        try:
            yield
        finally:
            self._local.spent = before

    @contextmanager
    def around(self, spent: Spent) -> Iterator[None]:
        """Times what is inside, for launches that have no hooks."""
        begin = self._event()
        try:
            yield
        finally:
            self._closed(begin, spent)

    def _enter(self, metadata: Any) -> None:
        if getattr(self._local, "spent", None) is not None:
            self._local.begin = self._event()

    def _exit(self, metadata: Any) -> None:
        spent = getattr(self._local, "spent", None)
        if spent is not None and getattr(self._local, "begin", None) is not None:
            self._closed(self._local.begin, spent)
            self._local.begin = None

    def _event(self) -> tuple[int, Any]:
        device = self._torch.cuda.current_device()
        with self._lock:
            free = self._free.setdefault(device, [])
            event = free.pop() if free else self._torch.cuda.Event(enable_timing=True)
        event.record()
        return device, event

    def _closed(self, begin: tuple[int, Any], spent: Spent) -> None:
        device, end = self._event()
        with self._lock:
            self._open.append((device, begin[1], end, spent))
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
