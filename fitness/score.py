"""The only place with a speedup formula."""

from __future__ import annotations

import math

from evo.records import Evaluation, Fitness, Verdict


def score(evaluation: Evaluation) -> Fitness | None:
    """Geometric mean over the tune cases of (seed time / candidate time); None unless the verdict is OK.

    The interval is the geometric mean of the cases' interval ends: wider than the mean's own interval if the cases err
    independently, right if they err together, as cases timed by one model or on one device largely do.
    """
    if evaluation.verdict is not Verdict.OK:
        return None
    timings = evaluation.timings
    return Fitness(
        speedup=_geometric_mean([t.ratio for t in timings]),
        ci95=(_geometric_mean([t.ci95[0] for t in timings]), _geometric_mean([t.ci95[1] for t in timings])),
        per_case={t.case: t.ratio for t in timings},
        estimated=evaluation.estimated,
    )


def _geometric_mean(values: list[float]) -> float:
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))
