"""Handles Ctrl-C in two steps: the first asks to stop, the second raises KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt:
    """A context in which the first SIGINT or SIGTERM sets `requested` and calls `notify`.

    The next one raises KeyboardInterrupt.  Works in the main thread only, as signals do.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.requested = False
        self._notify = notify
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._notify()

    def __enter__(self) -> Interrupt:
        self._before = {s: signal.signal(s, self._handle) for s in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
