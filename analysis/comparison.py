"""Compares the variants of a campaign with its first one: shares, means, areas, effects, tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from analysis import stats
from analysis.outcomes import Outcome

LEVEL = 0.95  # of intervals; a test is significant at 1 - LEVEL
# Pairs below which intervals, tests and words for effects say nothing: of four, the exact test gives p = 0.125 at best.
ENOUGH = 5


@dataclass(frozen=True)
class VariantSummary:
    """A variant over all its runs.  `by_task`: geometric mean of each task, failures as 1.0."""

    name: str
    runs: int
    successes: int
    mean: float  # geometric, failures as 1.0; over tasks of the tasks' means
    mean_ci: tuple[float, float]
    median: float  # of the runs, failures as 1.0
    of_successes: float | None  # arithmetic mean of the speedups that are gains
    area: float
    area_ci: tuple[float, float]
    by_task: tuple[float, ...]


@dataclass(frozen=True)
class Effect:
    """The difference of a variant from the first one, for one quantity.

    `size`: ratio of geometric means for the best speedup, difference for the area.  p-values are of the tasks' mean
    differences, of a campaign with one task those of its seeds; adjusted for the number of variants (Holm).
    """

    size: float
    ci: tuple[float, float]
    a12: float  # mean over the tasks
    p_flips: float
    p_wilcoxon: float


@dataclass(frozen=True)
class Against:
    name: str
    best: Effect
    area: Effect


@dataclass(frozen=True)
class Comparison:
    """`variants` in the order of the campaign; `against` has all but the first.  `seeds`: pairs a task."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: int
    gpu_seconds: float | None
    estimated: bool
    variants: tuple[VariantSummary, ...]
    against: tuple[Against, ...]

    @property
    def pairs(self) -> int:
        """Tasks times seeds that all variants have run."""
        return sum(self.seeds)

    @property
    def enough(self) -> bool:
        """Whether there are enough pairs for intervals, tests and words."""
        return self.pairs >= ENOUGH


Values = list[list[float]]  # by task, then by seed


def compare(outcomes: Sequence[Outcome], variants: Sequence[str]) -> Comparison:
    """Returns the comparison of `variants`.

    A seed of a task counts if every variant finished it.  Raises ValueError without such a seed.
    """
    found = {(o.variant, o.task, o.seed): o for o in outcomes}
    tasks = list(dict.fromkeys(o.task for o in outcomes))
    blocks = {
        task: [
            seed
            for seed in sorted({o.seed for o in outcomes if o.task == task})
            if all((variant, task, seed) in found for variant in variants)
        ]
        for task in tasks
    }
    blocks = {task: seeds for task, seeds in blocks.items() if seeds}
    if not blocks:
        raise ValueError("no task and seed that all variants have finished")
    ceilings = {task: max(o.best for o in outcomes if o.task == task) for task in blocks}
    best: dict[str, Values] = {}
    area: dict[str, Values] = {}
    for variant in variants:
        runs = [[found[variant, task, seed] for seed in seeds] for task, seeds in blocks.items()]
        best[variant] = [[math.log(o.reported) for o in group] for group in runs]
        area[variant] = [[o.area(ceilings[o.task]) for o in group] for group in runs]
    of_best = _effects(best, variants)
    of_area = _effects(area, variants)
    return Comparison(
        tasks=tuple(blocks),
        seeds=tuple(len(seeds) for seeds in blocks.values()),
        budget=outcomes[0].budget,
        gpu_seconds=outcomes[0].gpu_seconds,
        estimated=any(o.estimated for o in outcomes),
        variants=tuple(_variant(variant, best[variant], area[variant]) for variant in variants),
        against=tuple(
            Against(variant, _as_ratio(b), a) for variant, b, a in zip(variants[1:], of_best, of_area, strict=True)
        ),
    )


def _variant(name: str, best: Values, area: Values) -> VariantSummary:
    gains = [math.exp(v) for group in best for v in group if v > 0]
    return VariantSummary(
        name=name,
        runs=sum(map(len, best)),
        successes=len(gains),
        mean=math.exp(_mean(best)),
        mean_ci=_exp(stats.interval(best, level=LEVEL)),
        median=math.exp(statistics.median(v for group in best for v in group)),
        of_successes=sum(gains) / len(gains) if gains else None,
        area=_mean(area),
        area_ci=stats.interval(area, level=LEVEL),
        by_task=tuple(math.exp(math.fsum(group) / len(group)) for group in best),
    )


def _effects(values: dict[str, Values], variants: Sequence[str]) -> list[Effect]:
    """Returns the effect of every variant but the first, in their order; p-values adjusted over them."""
    reference = values[variants[0]]
    differences = [
        [
            [a - r for a, r in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(values[variant], reference, strict=True)
        ]
        for variant in variants[1:]
    ]
    # Seeds of one task share what the task is: taken for independent, they would claim more than the tasks show.
    tested = [
        groups[0] if len(groups) == 1 else [math.fsum(group) / len(group) for group in groups] for groups in differences
    ]
    flips = stats.holm([stats.sign_flips(d) for d in tested])
    wilcoxon = stats.holm([stats.wilcoxon(d) for d in tested])
    return [
        Effect(
            size=_mean(groups),
            ci=stats.interval(groups, level=LEVEL),
            a12=math.fsum(map(stats.a12, values[variant], reference)) / len(reference),
            p_flips=flips[i],
            p_wilcoxon=wilcoxon[i],
        )
        for i, (variant, groups) in enumerate(zip(variants[1:], differences, strict=True))
    ]


def _as_ratio(effect: Effect) -> Effect:
    return Effect(math.exp(effect.size), _exp(effect.ci), effect.a12, effect.p_flips, effect.p_wilcoxon)


def _mean(groups: Values) -> float:
    """Returns the mean over the tasks of each task's mean."""
    return math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)


def _exp(ends: tuple[float, float]) -> tuple[float, float]:
    return math.exp(ends[0]), math.exp(ends[1])
