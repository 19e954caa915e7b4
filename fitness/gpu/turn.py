"""Whose turn it is on a GPU: several who verify, or one who times.

What is verified may be slowed down by others; what is timed may not, so nothing else is asked of the GPU meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

# What the process of a runner sends when it wants to go on in another way; answered with the same word.
SHARED, ALONE = WAYS = ("shared", "alone")


class Turn:
    """A lock with two ways to hold it.  Who times goes first: those who verify would never leave the GPU otherwise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = self._waiting = 0
        self._owner: int | None = None  # thread that is alone

    def hold(self, way: str) -> AbstractContextManager[None]:
        """SHARED with others, or ALONE.  A thread that is alone may hold it again, either way."""
        return self.alone() if way == ALONE else self.shared()

    @contextmanager
    def shared(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None and not self._waiting)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            yield
            return
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._owner is None and not self._sharing)
            self._waiting -= 1
            self._owner = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()
