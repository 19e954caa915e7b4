"""Shares evaluations and estimates between the runs of a campaign: what one run paid for, the others look up.

Only for evaluators whose answer is a function of the candidate: estimated times are, measured ones are not (their noise
belongs to the experiment).  A single run keys the inputs of the verification by (candidate, proposal).  Here the
candidate alone is the key, so a run does not depend on which run came first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.core.records import (
    Bar,
    Candidate,
    Certificate,
    Evaluation,
    Profile,
    Verdict,
)
from evo.search.profiling import Profiler
from evo.storage.shared import SharedResults

# What the machine's load may have decided, and what depends on the run, is not kept.
_NOT_KEPT = (Verdict.TIMEOUT, Verdict.INFRASTRUCTURE, Verdict.DUPLICATE, Verdict.SLOW)


class SharedEvaluator:
    """An `evo.search.profiling.Profiler` in front of another one; `task_hash` and the candidate's id are the key."""

    def __init__(self, evaluator: Profiler, folder: Path, task_hash: str) -> None:
        self._inner, self._results = evaluator, SharedResults(folder, task_hash)

    @property
    def environment(self) -> Mapping[str, Any]:
        return {**self._inner.environment, "evaluations": "shared in the campaign, inputs keyed by the candidate alone"}

    def prepare(self) -> Evaluation:
        return self._inner.prepare()

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        if bar is not None and (looked := self._looked(candidate, known, bar)) is not None:
            return looked
        found = self._results.evaluation(candidate.id)
        if found is not None and known.get(found.plan_hash, candidate.id) == candidate.id:
            return found
        evaluation = self._inner.evaluate(candidate, seed=0, known=known)
        if evaluation.verdict not in _NOT_KEPT:
            self._results.add_evaluation(evaluation)
        return evaluation

    def _looked(self, candidate: Candidate, known: Mapping[str, str], bar: Bar) -> Evaluation | None:
        """Returns what a run finds alone if a first look ends it, also if another run evaluated it all the way.

        A first look is the estimate, which decides before anything that may be kept is looked up.
        """
        speedup = self._screened(candidate.source)
        if speedup is None or speedup >= bar.speedup:
            return None
        evaluation = self._inner.evaluate(candidate, seed=0, known=known, bar=bar)
        if evaluation.verdict not in _NOT_KEPT:  # it reaches the bar in one case
            self._results.add_evaluation(evaluation)
        return evaluation

    def certify(self, source: str, *, seed: int) -> Certificate:
        return self._inner.certify(source, seed=seed)

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        return [self._screened(source) for source in sources]

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        return self._inner.profile(candidate, evaluation, counters=counters)

    def plan_hash(self, source: str) -> str:
        found = self._results.evaluation(Candidate(source).id)
        return found.plan_hash if found is not None else self._inner.plan_hash(source)

    def _screened(self, source: str) -> float | None:
        name = Candidate(source).id
        known = self._results.screened(name)
        if known is not None:
            return known[0]
        speedup = self._inner.screen([source])[0]
        self._results.add_screen(name, speedup)
        return speedup

    def close(self) -> None:
        self._results.close()
        self._inner.close()
