"""How many more candidates may be evaluated."""

from __future__ import annotations

from collections.abc import Mapping

from evo.records import Proposal, Trial

SEED_OPERATOR = "seed"


def price(cost: Mapping[str, float], budget: int, max_tokens: int | None, max_usd: float | None) -> float:
    """What a trial took of all limits, in candidates: 1, and more where it used tokens or dollars that are limited.

    A trial that took a share of the tokens that was meant for three candidates costs 4.
    """
    tokens = cost.get("tokens_in", 0) + cost.get("tokens_out", 0)
    share = (tokens / max_tokens if max_tokens else 0.0) + (cost.get("usd", 0.0) / max_usd if max_usd else 0.0)
    return 1 + budget * share


class Budget:
    """Counts candidates: reserved when proposed, spent when finished.  The seed kernel (trial 0) is free.

    Every verdict costs the same, duplicates too: a strategy that repeats itself pays for it.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.spent = 0
        self._reserved: set[int] = set()

    def reserve(self, proposal: Proposal) -> None:
        """Sets the price of `proposal` aside until it is finished."""
        if proposal.operator != SEED_OPERATOR:
            self._reserved.add(proposal.index)

    def spend(self, trial: Trial) -> None:
        self._reserved.discard(trial.index)
        self.spent += trial.proposal.operator != SEED_OPERATOR

    def left(self) -> int:
        """Candidates that may still be proposed; never negative."""
        return max(0, self.total - self.spent - len(self._reserved))
