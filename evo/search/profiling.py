"""Profiles what limits the candidates while they are evaluated, for runs with prompts that tell models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from evo.core.errors import EvoError
from evo.core.records import Bar, Candidate, Evaluation, Profile, Trial, Verdict
from evo.search.engine import EvaluatorLike, Score
from evo.storage.store import ProfileLog

# Share of the best speedup so far that a measured candidate needs to be profiled: slower ones are seldom parents.
# Counters are read only for a new best, and while prompts may follow: nothing else is measured meanwhile.
PROMOTED = 0.9


class Profiler(EvaluatorLike, Protocol):
    """An evaluator that can profile."""

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        """Returns what limits a candidate that is ok; without `counters`, from known data alone.  Raises EvoError."""
        ...


class ProfilingEvaluator:
    """Evaluates as `evaluator` does, and profiles good candidates in the same worker before it returns.

    So a search that was killed and resumed asks the same questions as one that was not.  The seed is evaluated before
    the run exists.  Therefore this class is also an observer of the engine and profiles the seed with its trial.
    """

    def __init__(self, evaluator: Profiler, score: Score, folder: Path, asks: Callable[[], bool]) -> None:
        """folder: of the run, which this process writes.  asks: whether another prompt may follow."""
        self._evaluator, self._score, self._folder, self._asks = evaluator, score, folder, asks
        self._best = 0.0
        self._lock = threading.Lock()
        self.prepare, self.screen, self.plan_hash, self.certify, self.close = (
            evaluator.prepare, evaluator.screen, evaluator.plan_hash, evaluator.certify, evaluator.close,
        )  # fmt: skip

    @property
    def environment(self) -> Mapping[str, Any]:
        return self._evaluator.environment

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        evaluation = self._evaluator.evaluate(candidate, seed=seed, known=known, bar=bar)
        fitness = self._score(evaluation)
        if fitness is not None:
            with self._lock:
                best, self._best = self._best, max(self._best, fitness.speedup)
            if evaluation.estimated or fitness.speedup >= PROMOTED * best:
                self._profile(candidate, evaluation, counters=fitness.speedup > best and self._asks())
        return evaluation

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        if trial.fitness is not None and trial.proposal.is_kernel:
            with self._lock:
                self._best = max(self._best, trial.fitness.speedup)
        if trial.index == 0 and trial.proposal.is_kernel and trial.evaluation.verdict is Verdict.OK:
            self._profile(trial.proposal.candidate, trial.evaluation, counters=True)

    def _profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool) -> None:
        with ProfileLog(self._folder) as log:
            if log.has(candidate.id):
                return
            try:
                profile = self._evaluator.profile(candidate, evaluation, counters=counters)
            except EvoError as error:
                log.failed(candidate.id, str(error))
            else:
                log.add(candidate.id, profile)
