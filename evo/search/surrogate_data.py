"""What operators are told of a run's measurements: its last candidates as `operators.surrogate` wants them."""

from __future__ import annotations

from collections import deque

from evo.core.records import Trial, Verdict
from evo.storage.result import best_source
from operators.surrogate import MOST, Measured


class Measurements:
    """A fold over trials in the order in which they were judged."""

    def __init__(self) -> None:
        self._last: deque[Measured] = deque(maxlen=MOST)

    @property
    def last(self) -> tuple[Measured, ...]:
        return tuple(self._last)

    def add(self, trial: Trial) -> None:
        """Takes in a trial.  A duplicate is as fast as its twin; faults of the machine say nothing."""
        evaluation = trial.evaluation
        speedup = trial.fitness.speedup if trial.fitness else None
        if evaluation.verdict is Verdict.DUPLICATE:
            speedup = next((m.speedup for m in self._last if m.candidate == evaluation.duplicate_of), None)
        if speedup is None and evaluation.verdict in (Verdict.DUPLICATE, Verdict.INFRASTRUCTURE):
            return
        self._last.append(Measured(trial.proposal.candidate.id, best_source(trial), speedup))
