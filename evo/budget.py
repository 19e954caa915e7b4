"""How many more candidates may be evaluated."""

from __future__ import annotations

from evo.records import Proposal, Trial

SEED_OPERATOR = "seed"


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
