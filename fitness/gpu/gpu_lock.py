"""Locks a GPU for one process at a time, among all processes of evo on this machine.

Verification takes the lock too.  Processes share a GPU in slices of time.  Twelve of them with kernels of a few
microseconds were no faster together than one after the other (5.7 candidates/s on an H200, both ways).  Only what
`torch.compile` takes to compile a baseline is spent before the lock: its first call runs each kernel a few times.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path


class GpuLock:
    """A lock on a GPU, through a file; the system releases it if its process dies.  One thread may take it again."""

    def __init__(self, uuid: str, folder: Path | None = None) -> None:
        """Opens the file. folder: its folder (default: that of temporary files)."""
        self._path = (folder or Path(tempfile.gettempdir())) / f"evo-{uuid}.lock"
        self.depth, self._file = 0, -1  # depth: how often it was taken here

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock; waits until it is free."""
        self.take()
        try:
            yield
        finally:
            self.leave()

    def take(self) -> None:
        if not self.depth:
            self._file = _opened(self._path)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.depth += 1

    @contextlib.contextmanager
    def lent(self, again: bool = True) -> Iterator[None]:
        """Lets other processes have the lock meanwhile; not if it was taken more than once.

        again: whether to wait for it then; it is given up if what follows does not use the GPU.
        """
        once = self.depth == 1
        if once:
            self.leave()
        try:
            yield
        finally:
            if once and again:
                self.take()

    def leave(self) -> None:
        """Gives back what was taken, if it was."""
        if not self.depth:
            return
        self.depth -= 1
        if not self.depth:
            os.close(self._file)


@contextlib.contextmanager
def held_for(uuid: str, seconds: int) -> Iterator[None]:
    """Holds the lock of a GPU for a tool that watches this process.

    The process is ended if it holds the lock for longer.  Call it after all imports, with a CUDA context: a tool makes
    Python start slowly, and meanwhile others use the GPU.
    """
    with GpuLock(uuid).held(), ended_after(seconds):
        yield


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """Ends this process if what follows takes longer, also if it does not come back to Python.

    A process has one such limit at a time: one within another replaces it.
    """
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _opened(path: Path) -> int:
    """Opens the file, maybe another user's: reading is enough for a lock, and some systems refuse to create it."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
