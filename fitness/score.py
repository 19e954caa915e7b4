"""Computes speedups; the only place with their formula."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evo.core.records import Evaluation, Fitness, Timing, Verdict


def score(evaluation: Evaluation) -> Fitness | None:
    """Returns the geometric mean over the tune cases of (seed time / candidate time); None unless the verdict is OK.

    The interval is the geometric mean of the cases' interval ends.  It is wider than the mean's own interval if the
    cases err independently.  It is right if they err together, as cases timed by one model or on one device largely do.

    A measured case whose difference is not significant enters as ratio 1, with its interval widened to include 1.  Its
    interval includes 1, or its ratio lies within the noise floor of the device.
    """
    return fitness_of(evaluation.timings) if evaluation.verdict is Verdict.OK else None


def fitness_of(timings: Sequence[Timing]) -> Fitness:
    """Returns the fitness of the timings of a candidate that is right."""
    cases = {t.case: _counted(t) for t in timings}
    ratios, lows, highs = zip(*cases.values(), strict=True)
    return Fitness(
        speedup=_geometric_mean(ratios),
        ci95=(_geometric_mean(lows), _geometric_mean(highs)),
        per_case={case: ratio for case, (ratio, _, _) in cases.items()},
        estimated=any(t.estimated for t in timings),
    )


def _counted(timing: Timing) -> tuple[float, float, float]:
    """Returns (ratio, low, high) of a case as it enters the mean."""
    low, high = timing.ci95
    if timing.significant:
        return timing.ratio, low, high
    return 1.0, min(low, 1.0), max(high, 1.0)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))
