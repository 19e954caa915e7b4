"""What came of a run, as far as comparing searches needs it; many of them in one JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import StoreError
from evo.records import Trial
from evo.store import RunReader

FILE = "outcomes.json"
_FORMAT = 1


@dataclass(frozen=True)
class Outcome:
    """One run.  Only gains count that are beyond their interval: without one, the best is 1.0.

    `curve[i]`: the best speedup after candidate i + 1 of the budget (the seed is before it), level where the run ended
    early.  `ci95`: interval of the best, (1, 1) without a gain.  `seconds`: of all stages of all evaluations, added up.
    """

    arm: str
    task: str
    seed: int
    budget: int
    curve: tuple[float, ...]
    ci95: tuple[float, float]
    estimated: bool
    verdicts: Mapping[str, int]
    seconds: float

    @property
    def best(self) -> float:
        return self.curve[-1]

    @property
    def success(self) -> bool:
        return self.best > 1


def outcome_of(folder: Path, arm: str = "") -> Outcome:
    """Of the run in `folder`, finished or not.  Raises StoreError where there is none."""
    with RunReader(folder) as run:
        config = run.info.config
        trials = [t for t in run.trials() if t.index]
        best, ci95, curve = 1.0, (1.0, 1.0), []
        for trial in trials[: config.budget]:
            if _gain(trial) > best and trial.fitness:
                best, ci95 = trial.fitness.speedup, trial.fitness.ci95
            curve.append(best)
        curve += [best] * (config.budget - len(curve))
        return Outcome(
            arm=arm,
            task=Path(config.task).name,
            seed=config.seed,
            budget=config.budget,
            curve=tuple(curve),
            ci95=ci95,
            estimated=config.device == "cpu",
            verdicts=run.verdicts(),
            seconds=sum(sum(t.evaluation.seconds.values()) for t in trials),
        )


def _gain(trial: Trial) -> float:
    """The speedup where its interval lies above 1, else 1."""
    return trial.fitness.speedup if trial.fitness and trial.fitness.ci95[0] > 1 else 1.0


def save(path: Path, outcomes: Iterable[Outcome], **about: Any) -> None:
    """Writes `outcomes` to `path`, with `about` beside them; figures to 6 digits."""
    rows = [{**dataclasses.asdict(o), "curve": _rounded(o.curve), "ci95": _rounded(o.ci95)} for o in outcomes]
    for row in rows:
        row["seconds"] = round(row["seconds"], 3)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"format": _FORMAT, **about}, indent=1)[:-2]
    path.write_text(f'{head},\n "outcomes": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def load(path: Path) -> list[Outcome]:
    """What `save` wrote.  Raises StoreError where `path` is nothing of the kind."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != _FORMAT:
            raise ValueError(f"format {raw['format']}, this version reads {_FORMAT}")
        return [Outcome(**{**row, "curve": tuple(row["curve"]), "ci95": tuple(row["ci95"])}) for row in raw["outcomes"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"expected the outcomes of runs in {path}, got: {error}") from error


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
