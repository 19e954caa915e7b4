"""Shares the budget of a campaign among its runs by headroom and recent progress, in rounds.

Each run first gets a part of its equal share.  Rounds then share what is left of all.  More goes to runs whose best
kernel got faster lately, and is far from what is attainable.  Runs that ended for a reason of their own get
nothing more, so the others get what those left.  Budgets are in the campaign's folder: every process reads them there,
and a campaign that was stopped goes on with them.

`analysis/benchmarks/bench_allocation.py` shows what this gains on recorded courses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evo.core.errors import StoreError
from evo.core.files import write_whole

EQUAL, HEADROOM = ALLOCATIONS = ("equal", "headroom")  # the values of --allocation
FILE = "allocation.json"

# Chosen on half of the kernels of runs/reference/tritonbench-g, and tried on the other half.
FIRST = 0.25  # Of its equal share: what each run gets first.
ROUNDS = 2  # Rounds that share the rest.
WINDOW = 0.5  # Of a run's candidates: progress in the last of them is recent.
HOPE = 0.05  # Progress that every run is credited with: one that stands still may find something yet.
MOST = 2.0  # Times its equal share: the recorded courses end there.
NEAR = 2.0  # Times the attainable time: nearer kernels get less, by the logarithm.

Run = TypeVar("Run", bound=Hashable)


@dataclass(frozen=True)
class RunProgress:
    """How far a run has come.

    curve: the best speedup after 0, 1, ... candidates.  attained: share of the attainable speed that its best has, None
    if unknown.  over: whether it ended for a reason of its own.
    """

    curve: Sequence[float]
    attained: float | None = None
    over: bool = False

    @property
    def spent(self) -> int:
        return len(self.curve) - 1

    @property
    def weight(self) -> float:
        """By what more candidates for this run may be worth: recent progress times headroom."""
        recent = max(1, round(self.spent * WINDOW))
        progress = math.log(self.curve[-1] / self.curve[max(0, self.spent - recent)])
        if self.attained is None:
            return progress + HOPE
        headroom = math.log(1 / min(1.0, self.attained)) / math.log(NEAR)
        return (progress + HOPE) * min(1.0, headroom)


def first_budget(budget: int) -> int:
    """Returns what each run gets first of its equal share."""
    return max(1, round(budget * FIRST))


def next_budgets(runs: Mapping[Run, RunProgress], budget: int, round_number: int) -> dict[Run, int]:
    """Returns the new budgets, in total, of the runs that get more in a round; empty if nothing is left.

    budget: the equal share, times the number of runs what all may spend.  round_number: from 1; after ROUNDS nothing.
    """
    left = budget * len(runs) - sum(run.spent for run in runs.values())
    if round_number > ROUNDS or left <= 0:
        return {}
    most = max(1, int(MOST * budget))
    room = {name: most - run.spent for name, run in runs.items() if not run.over and run.spent < most}
    shares = _shared(left // (ROUNDS - round_number + 1), room, {name: runs[name].weight for name in room})
    return {name: runs[name].spent + share for name, share in shares.items() if share}


def _shared(amount: int, room: Mapping[Run, int], weights: Mapping[Run, float]) -> dict[Run, int]:
    """Returns whole parts of `amount` by weight, none above its room; largest remainders first."""
    parts = dict.fromkeys(room, 0)
    while amount and (open_ := [name for name in room if parts[name] < room[name]]):
        total = math.fsum(weights[name] for name in open_)
        exact = {name: amount * weights[name] / total if total else amount / len(open_) for name in open_}
        given = {name: min(room[name] - parts[name], int(exact[name])) for name in open_}
        rest = amount - sum(given.values())
        for name in sorted(open_, key=lambda n: int(exact[n]) - exact[n]):
            if rest and parts[name] + given[name] < room[name]:
                given[name] += 1
                rest -= 1
        for name, part in given.items():
            parts[name] += part
        amount = rest
    return parts


# --- the file in a campaign's folder ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budgets:
    """The budgets of a campaign's runs.  `round_number`: 0 while each has the first; `of`: by TASK/VARIANT/seed-N."""

    round_number: int
    first: int
    of: Mapping[str, int]

    def budget(self, run: str) -> int:
        """Returns the candidates of a run so far."""
        return self.of.get(run, self.first)


def read_budgets(folder: Path, budget: int) -> Budgets:
    """Returns the budgets of the campaign in `folder`: the first ones if nothing was written yet.

    budget: the equal share.  Raises StoreError if the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return Budgets(0, first_budget(budget), {})
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Budgets(int(raw["round"]), first_budget(budget), {str(run): int(n) for run, n in raw["budgets"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"expected the budgets of runs in {path}, got: {error!r}; restore it from a copy") from error


def write_budgets(folder: Path, budgets: Budgets) -> None:
    """Writes the budgets into the campaign's folder; a kill leaves the earlier ones."""
    text = json.dumps({"round": budgets.round_number, "budgets": dict(budgets.of)}, indent=1)
    write_whole(folder / FILE, text + "\n")
