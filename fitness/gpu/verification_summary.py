"""Chooses the inputs on which a candidate is verified on a GPU, and keeps the worst result."""

from __future__ import annotations

from evo.core.records import Case, Check, Verdict
from fitness.frontend.stages import NOTHING_COMPARED, Stop
from fitness.tasks.task import Task
from fitness.verify import oracle

FRESH = 3  # replays on different inputs for every case


def inputs_of(task: Task, case: Case, key: int, fresh: int = FRESH) -> list[tuple[str, int]]:
    """Returns (variant, number) of the inputs of a case: every stress variant on one of the cases, plain ones last.

    `key` decides on which one: no kernel can see it.
    """
    stress = [v for v in oracle.variants(task) if v != "normal"]
    mine = task.cases.index(case)
    chosen = [v for i, v in enumerate(stress) if (i + key) % len(task.cases) == mine]
    return [(variant, 0) for variant in chosen] + [("normal", number) for number in range(fresh)]


class VerificationSummary:
    """The worst replay so far."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.infinite: set[str] = set()  # cases whose outputs hold infinities
        self.own_share = 1.0
        self._cases, self._worst, self._where, self._budget = 0, -1.0, "", 0.0

    def has_seen(self, case: Case) -> bool:
        return case.name in self.seen

    def add(self, where: str, ratio: float, budget: float) -> None:
        """Adds a replay. ratio: error in units of the budget; budget: absolute, root mean square."""
        self._cases += 1
        if ratio > self._worst:
            self._worst, self._where, self._budget = ratio, where, budget

    def check(self) -> Check:
        if not self._cases:
            raise Stop("verify", Verdict.INFRASTRUCTURE, NOTHING_COMPARED)
        return Check(self._cases, self._where, self._worst, self._budget, self.own_share)
