"""Says whether first looks pay on a GPU: what they save, by the candidates so far, against what they cost.

A look costs GPU time with each candidate, and saves a whole evaluation with each that it ends.  Of short kernels it
takes nearly as long as the evaluation, so few ended ones do not pay (`runs/reference/h200-runner/README.md`).
"""

from __future__ import annotations

import threading
from collections import deque

TRIED = 8  # looks before their price is known
LATEST = 32  # candidates whose share counts: a search gets closer to its best


class FirstLooks:
    """Counts looks and evaluations of one task.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[bool] = deque(maxlen=LATEST)  # whether a look ended the candidate, or would have
        self._looks, self._look_s = 0, 0.0
        self._evaluations, self._evaluation_s = 0, 0.0

    def pay(self) -> bool:
        """Returns whether to look at the next candidate first; True until enough is known."""
        with self._lock:
            if self._looks < TRIED or not self._evaluations:
                return True
            share = sum(self._ended) / len(self._ended)
            return share * self._evaluation_s / self._evaluations > self._look_s / self._looks

    def looked(self, seconds: float, *, ended: bool) -> None:
        """Counts a look that took `seconds` of the GPU."""
        with self._lock:
            self._looks += 1
            self._look_s += seconds
            self._ended.append(ended)

    def evaluated(self, seconds: float, *, below: bool | None) -> None:
        """Counts a whole evaluation.

        seconds: of the GPU, without a look; below: whether it ended below its bar, None if a look was taken before.
        """
        with self._lock:
            self._evaluations += 1
            self._evaluation_s += seconds
            if below is not None:
                self._ended.append(below)
