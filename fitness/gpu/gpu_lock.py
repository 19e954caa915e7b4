"""Whose turn it is on a GPU: one runner's at a time, of all processes of evo on this machine.

Verification is not done beside that of others either: processes share a GPU in slices of time, and twelve of them with
kernels of a few microseconds got no further than one after the other (5.7 candidates/s on an H200, both ways).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class GpuLock:
    """A lock on a GPU, held through a file; whoever dies gives it back.  Of one thread, which may take it again."""

    def __init__(self, uuid: str, folder: Path | None = None) -> None:
        """`folder`: where the file is (default: that of temporary files)."""
        self._path = (folder or Path(tempfile.gettempdir())) / f"evo-{uuid}.lock"
        self._depth, self._file = 0, -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Waits until nobody else has it."""
        self.take()
        try:
            yield
        finally:
            self.leave()

    def take(self) -> None:
        if not self._depth:
            self._file = _opened(self._path)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1

    def leave(self) -> None:
        """Gives back what was taken; nothing where it was not."""
        if not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            os.close(self._file)


def _opened(path: Path) -> int:
    """The file, which may be another user's: reading is enough for a lock, and creating is refused by some systems."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
