"""Counts the budget of a run: candidates, GPU seconds, and the price of trials."""

from __future__ import annotations

from collections.abc import Mapping

from evo.core.records import FIRST_OPERATORS, Evaluation, Proposal, Trial, Verdict

# The longest that a GPU works on one candidate: the runner ends it then.  A campaign reserves so much of its limit.
MOST_GPU_S = 30.0


def price(cost: Mapping[str, float], budget: int, max_tokens: int | None, max_usd: float | None) -> float:
    """Returns the price of a trial in candidates: 1, and more if it used tokens or dollars that are limited.

    A trial that took a share of the tokens that was meant for three candidates costs 4.
    """
    tokens = cost.get("tokens_in", 0) + cost.get("tokens_out", 0)
    share = (tokens / max_tokens if max_tokens else 0.0) + (cost.get("usd", 0.0) / max_usd if max_usd else 0.0)
    return 1 + budget * share


def gpu_seconds(evaluation: Evaluation) -> float:
    """Returns the seconds for which a GPU verified and timed the candidate.

    Waiting for the GPU and certificates do not count: both depend on what else is evaluated there.  Faults of the
    machine cost a search nothing.
    """
    return 0.0 if evaluation.verdict is Verdict.INFRASTRUCTURE else evaluation.seconds.get("time", 0.0)


def in_words(candidates: int, gpu_seconds: float | None) -> str:
    """Returns e.g. "24 candidates", "60 GPU seconds (1000 candidates at most)"."""
    if gpu_seconds is None:
        return f"{candidates} candidates"
    return f"{gpu_seconds:g} GPU seconds ({candidates} candidates at most)"


class Budget:
    """Counts candidates: reserved when proposed, spent when finished.  Trial 0, the baseline, is free.

    Every verdict costs the same, duplicates too: a strategy that repeats itself pays for it.  GPU seconds are known
    when they are spent: the last candidate may take more than was left.
    """

    def __init__(self, total: int, gpu_seconds: float | None = None) -> None:
        """`total`: candidates; `gpu_seconds`: None for no limit."""
        self.total, self.gpu_seconds = total, gpu_seconds
        self.spent = 0
        self.spent_gpu_s = 0.0
        self._reserved: set[int] = set()

    def reserve(self, proposal: Proposal) -> None:
        """Sets the price of `proposal` aside until it is finished."""
        if proposal.operator not in FIRST_OPERATORS:
            self._reserved.add(proposal.index)

    def spend(self, trial: Trial) -> None:
        self._reserved.discard(trial.index)
        if trial.proposal.operator not in FIRST_OPERATORS:
            self.spent += 1
            self.spent_gpu_s += gpu_seconds(trial.evaluation)

    @property
    def over(self) -> bool:
        """Whether all candidates or all GPU seconds are spent."""
        return self.spent >= self.total or (self.gpu_seconds is not None and self.spent_gpu_s >= self.gpu_seconds)

    def left(self) -> int:
        """Candidates that may still be proposed; never negative."""
        return 0 if self.over else max(0, self.total - self.spent - len(self._reserved))
