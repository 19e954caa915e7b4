"""Locks between processes, by files.  The kernel releases those of a process that ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Takes the lock on the file `path` (made if missing) without waiting; yields whether it is held inside."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Waits for the lock on the file `path` (made if missing) and holds it inside."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
