"""Zygotes that outlive the test that opened them: to start one takes three seconds of a core, for torch and a warm-up.

A zygote forks a confined child for each job and executes nothing of a job itself.  So one may serve many evaluators,
as an evaluator factory has it.  If a test closes a zygote that is idle, the next test that needs its jobs gets it.
Processes that a test starts, and zygotes with a GPU or with jobs of `tests`, start and end as everywhere.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence

from fitness.sandbox import zygote
from fitness.sandbox.layers import clean_environment
from fitness.sandbox.zygote import _ZygoteProcess

MOST_IDLE = 2  # each holds half a gigabyte


class WarmZygotes:
    """The idle zygotes of this process; `start` takes the place of `_ZygoteProcess` in `fitness.sandbox.zygote`."""

    def __init__(self) -> None:
        self._idle: list[_Kept] = []
        self._lock = threading.Lock()

    def start(self, target: str, jobs: Sequence[str], gpu: str) -> _ZygoteProcess:
        """An idle zygote that knows these jobs, or a new one."""
        if gpu or any(job.startswith("tests.") for job in jobs):
            return _ZygoteProcess(target, jobs, gpu)
        place = (target, tempfile.gettempdir(), clean_environment())
        with self._lock:
            for process in self._idle:
                if process.place == place and process.jobs >= set(jobs) and not process.dead:
                    self._idle.remove(process)
                    process.finished = 0
                    return process
        return _Kept(self, place, target, jobs)

    def keep(self, process: _Kept) -> None:
        """Takes a zygote that is not in use; ends the one that is idle for longest if there are too many."""
        with self._lock:
            self._idle.append(process)
            surplus = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if surplus is not None:
            surplus.end()

    def close(self) -> None:
        """Ends all idle zygotes."""
        while self._idle:
            self._idle.pop().end()


class _Kept(_ZygoteProcess):
    def __init__(self, warm: WarmZygotes, place: tuple, target: str, jobs: Sequence[str]) -> None:
        super().__init__(target, jobs, "")
        self._warm, self.place, self.jobs = warm, place, set(jobs)

    def close(self) -> None:
        with self._state:
            idle = not self.dead and not self._pending
        if idle:
            self._warm.keep(self)
        else:
            self.end()

    def end(self) -> None:
        super().close()


def keep_warm() -> WarmZygotes:
    """Makes every `Zygote` of this process take its process from here; `close` ends what is left."""
    warm = WarmZygotes()
    zygote._ZygoteProcess = warm.start  # type: ignore[misc,assignment]
    return warm
