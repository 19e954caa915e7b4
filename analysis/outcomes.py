"""Summarizes a run as an `Outcome` for comparisons of searches; saves and loads many in one JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.stats import area_under, area_under_steps
from evo.campaign.champions import retimed
from evo.core.errors import StoreError
from evo.core.files import write_whole
from evo.core.records import CERTIFICATE, PASSED, Trial, Verdict
from evo.search.budget import gpu_seconds
from evo.storage.best import Conclusion, read_result
from evo.storage.queries import RunReader

FILE = "outcomes.json"
_FORMAT = 3
_TUPLES = ("curve", "ci95", "at", "retimed_ci95")
_FORMATS = (1, 2, _FORMAT)  # that this version reads; in the first, a variant is an "arm"

SUCCESS = 1.05  # times as fast as the seed, from which on TritonForge (arXiv:2512.09196) counts a kernel as sped up


@dataclass(frozen=True)
class Outcome:
    """One run.  Only gains count that are beyond their interval: without one, the best is 1.0.

    `curve[i]`: the best speedup after candidate i + 1 of the budget (the seed is before it); it stays level after an
    early end.  `ci95`: interval of the best, (1, 1) without a gain.  `seconds`: of all stages of all evaluations, added
    up; `gpu_spent`: those of a GPU alone.  `successes`: candidates that gained at least SUCCESS.  `certified`: the best
    of those with a passed certificate (champions, and what was written to best/); 1.0 without one, and without a GPU.
    A candidate whose certificate failed counts as no gain.  `attained`: the share of the attainable speed that
    the best has, or without a gain the seed; None if unknown.  `task_hash` and `target`: "" if unknown.  `retimed`:
    what the best came to in a new process, with its interval; 1.0 if that is no gain or the kernel was not ok there;
    None if it was not timed again.  Files of earlier versions lack these.

    If GPU seconds are the budget, `curve[i]` is the best from `at[i]` GPU seconds on, 1.0 from 0 on; a candidate that
    was not done within them does not count.
    """

    variant: str
    task: str
    seed: int
    budget: int
    curve: tuple[float, ...]
    ci95: tuple[float, float]
    estimated: bool
    verdicts: Mapping[str, int]
    seconds: float
    gpu_seconds: float | None = None
    at: tuple[float, ...] = ()
    gpu_spent: float = 0.0
    successes: int = 0
    certified: float = 1.0
    task_hash: str = ""
    target: str = ""
    attained: float | None = None
    retimed: float | None = None
    retimed_ci95: tuple[float, ...] = ()

    @property
    def reported(self) -> float:
        """The speedup to report: the second timing of the best if there is one, else that of the search."""
        return self.best if self.retimed is None else self.retimed

    @property
    def reported_ci95(self) -> tuple[float, float]:
        """The interval of `reported`, (1, 1) without a gain."""
        if self.retimed is None:
            return self.ci95
        low, high = self.retimed_ci95
        return low, high

    @property
    def best(self) -> float:
        return self.curve[-1]

    @property
    def success(self) -> bool:
        return self.best > 1

    def area(self, ceiling: float) -> float:
        """Returns the area under the curve, over what the budget counts; `ceiling`: see `stats.area_under`."""
        if self.gpu_seconds is None:
            return area_under(self.curve, ceiling)
        return area_under_steps(self.curve, self.at, self.gpu_seconds, ceiling)


def outcome_of(folder: Path, variant: str = "") -> Outcome:
    """Returns the outcome of the run in `folder`, finished or not.  Raises StoreError without one."""
    with RunReader(folder) as run:
        config = run.info.config
        first, trials = run.first(), [t for t in run.trials() if t.index]
        gains, certified = _gains(trials, read_result(run))
        best, ci95, successes = 1.0, (1.0, 1.0), 0
        attained = first.evaluation.attained if first and first.proposal.is_kernel else None
        curve: list[float] = []  # after each candidate
        steps = {0.0: 1.0}  # GPU seconds -> best after them
        for trial, spent in _within(trials[: config.budget], config.gpu_seconds):
            if gains[trial.index] > best and trial.fitness:
                best, ci95 = trial.fitness.speedup, trial.fitness.ci95
                steps[spent], attained = best, trial.evaluation.attained
            curve.append(best)
            successes += gains[trial.index] >= SUCCESS
        curve += [best] * (config.budget - len(curve))
        by_gpu = config.gpu_seconds is not None
        return Outcome(
            variant=variant,
            task=Path(config.task).name,
            seed=config.seed,
            budget=config.budget,
            curve=tuple(steps.values() if by_gpu else curve),
            ci95=ci95,
            estimated=config.device == "cpu",
            verdicts=run.verdicts(),
            seconds=sum(sum(t.evaluation.seconds.values()) for t in trials),
            gpu_seconds=config.gpu_seconds,
            at=tuple(steps if by_gpu else ()),
            gpu_spent=sum(gpu_seconds(t.evaluation) for t in trials),
            successes=successes,
            certified=certified,
            task_hash=run.info.task_hash,
            target=config.target,
            attained=attained,
            **_again(folder),
        )


def _again(folder: Path) -> dict[str, Any]:
    """Returns `retimed` and `retimed_ci95` of the run in `folder`."""
    found = retimed(folder)
    if found is None or found.verdict is Verdict.INFRASTRUCTURE:
        return {}
    if found.speedup is None or found.ci95 is None or found.ci95[0] <= 1:
        return {"retimed": 1.0, "retimed_ci95": (1.0, 1.0)}
    return {"retimed": found.speedup, "retimed_ci95": found.ci95}


def _gains(trials: Sequence[Trial], result: Conclusion | None) -> tuple[dict[int, float], float]:
    """Returns the gain of each trial, and the best certified one.  result: what is in best/, with its certificates."""
    refused = {number for number, _ in result.refused} if result else set()
    gains = {t.index: 1.0 if t.index in refused else gain(t) for t in trials}
    certified = {t.index for t in trials if t.evaluation.environment.get(CERTIFICATE) == PASSED}
    if result and result.certificate.verdict is Verdict.OK:
        certified.add(result.best.index)
    return gains, max((gains[number] for number in certified & gains.keys()), default=1.0)


def _within(trials: Iterable[Trial], most: float | None) -> Iterator[tuple[Trial, float]]:
    """Yields the trials done within `most` GPU seconds, each with the GPU seconds spent until then."""
    spent = 0.0
    for trial in trials:
        spent += gpu_seconds(trial.evaluation)
        if most is not None and spent > most:
            return
        yield trial, spent


def gain(trial: Trial) -> float:
    """Returns the speedup if its interval lies above 1, else 1."""
    return trial.fitness.speedup if trial.fitness and trial.fitness.ci95[0] > 1 else 1.0


def save(path: Path, outcomes: Iterable[Outcome], **about: Any) -> None:
    """Writes `outcomes` to `path`, with `about` beside them; figures to 6 digits.

    If the process is killed meanwhile, the file stays as it was.  Raises StoreError if it cannot be written.
    """
    rows = [{**dataclasses.asdict(o), **{name: _rounded(getattr(o, name)) for name in _TUPLES}} for o in outcomes]
    for row in rows:
        row |= {name: round(row[name], 3) for name in ("seconds", "gpu_spent")}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"format": _FORMAT, **about}, indent=1)[:-2]
    write_whole(path, f'{head},\n "outcomes": [\n{lines}\n ]\n}}\n')


def load(path: Path) -> list[Outcome]:
    """Returns what `save` wrote.  Raises StoreError if `path` is another file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] not in _FORMATS:
            raise ValueError(f"format {raw['format']}, this version reads {_FORMATS[0]} to {_FORMATS[-1]}")
        rows = [{"variant" if key == "arm" else key: value for key, value in row.items()} for row in raw["outcomes"]]
        return [Outcome(**{**row, **{name: tuple(row.get(name, ())) for name in _TUPLES}}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"expected the outcomes of runs in {path}, got: {error!r}; restore it from a copy, or move it away if "
            f"all its runs are there"
        ) from error


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{v:.6g}") for v in values]
