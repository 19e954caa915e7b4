"""Computes statistics of paired experiments: the same tasks and seeds under two variants.

Everything random takes a seed and gives the same answer each time.  Speedups are compared as logarithms, so that 2x up
and 2x down weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Test = Callable[..., float]  # differences of pairs -> p

RESAMPLES = 10_000  # of a bootstrap: its ends are then good to about 1% of the interval's width
FLIPS = 1 << 16  # of a permutation test; all of them (an exact test) for up to 16 pairs

# Vargha and Delaney, "A Critique and Improvement of the CL Common Language Effect Size Statistics", 2000, table 1.
_MAGNITUDES = ((0.71, "large"), (0.64, "medium"), (0.56, "small"))


def geometric_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean of positive values, at least one."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def area_under(curve: Sequence[float], ceiling: float) -> float:
    """Area under a best-so-far curve, 0..1: the mean over the trials of log(best so far) / log(`ceiling`).

    `curve[i]` is the best speedup (at least 1) after trial i + 1, `ceiling` the best that any variant found on the
    task: 1 is a search that had it at once, 0 one that never beat the seed.  If no variant did, 0.
    """
    if ceiling <= 1:
        return 0.0
    return math.fsum(math.log(best) for best in curve) / (len(curve) * math.log(ceiling))


def area_under_steps(curve: Sequence[float], at: Sequence[float], until: float, ceiling: float) -> float:
    """The same over a quantity of which candidates take unequal shares: the mean over 0 to `until`.

    `curve[i]` is the best speedup from `at[i]` on, of which the first is 0.
    """
    if ceiling <= 1:
        return 0.0
    widths = [end - begin for begin, end in zip(at, [*at[1:], until], strict=True)]
    return math.fsum(math.log(best) * width for best, width in zip(curve, widths, strict=True)) / (
        until * math.log(ceiling)
    )


def pass_at(k: int, right: int, of: int) -> float:
    """The chance that of `k` candidates drawn from `of`, of which `right` are, at least one is; `k` at most `of`.

    The unbiased estimate of Chen et al. 2021 (arXiv:2107.03374), equation 1.
    """
    return 1 - math.comb(of - right, k) / math.comb(of, k)


# --- tests ------------------------------------------------------------------------------------------------------------


def sign_flips(differences: Sequence[float], *, alternative: str = "two-sided", seed: int = 0) -> float:
    """p of the paired permutation test of the mean (Fisher 1935): under the null each difference may have either sign.

    Exact for up to 16 differences that are not zero, else from 65536 random flips.  `alternative`: "less" asks whether
    the mean is below 0, "greater" whether it is above; "two-sided" is twice the smaller of both.
    """
    sizes = np.abs(np.asarray(differences, dtype=float))
    sizes, signs = sizes[sizes > 0], np.sign(np.asarray(differences, dtype=float))[sizes > 0]
    if not len(sizes):
        return 1.0
    exact = 1 << len(sizes) <= FLIPS
    sums = _flipped(len(sizes), exact, seed) @ sizes
    observed = float(signs @ sizes)
    slack = 1e-12 * float(sizes.sum())  # sums that are equal but for rounding are equal
    # Random flips: the observed one counts as one of them, or p could be 0 (Phipson and Smyth 2010).
    extra = 0 if exact else 1
    less, greater = (
        (int(count) + extra) / (len(sums) + extra)
        for count in ((sums <= observed + slack).sum(), (sums >= observed - slack).sum())
    )
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[alternative]


def _flipped(count: int, exact: bool, seed: int) -> np.ndarray:
    """Rows of `count` signs: every pattern, or FLIPS random ones."""
    if exact:
        bits = np.arange(1 << count)[:, None] >> np.arange(count) & 1
    else:
        bits = np.random.default_rng(seed).integers(0, 2, size=(FLIPS, count), dtype=np.int8)
    return 2.0 * bits - 1.0


def wilcoxon(differences: Sequence[float], *, alternative: str = "two-sided", seed: int = 0) -> float:
    """p of Wilcoxon's signed-rank test, zero differences dropped: `sign_flips` of the ranks, so ties are no problem."""
    from scipy.stats import rankdata

    kept = np.asarray([d for d in differences if d != 0], dtype=float)
    return sign_flips((np.sign(kept) * rankdata(np.abs(kept))).tolist(), alternative=alternative, seed=seed)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for being several (Holm 1979), in the order given."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def share_interval(count: int, of: int) -> tuple[float, float]:
    """Returns the 95% interval of a share, by Wilson (1927)."""
    from scipy.stats import binomtest

    found = binomtest(count, of).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


# --- effects and intervals --------------------------------------------------------------------------------------------


def a12(first: Sequence[float], second: Sequence[float]) -> float:
    """Vargha and Delaney's A: the chance that a value of `first` is above one of `second`, ties counted half."""
    greater = np.sign(np.subtract.outer(np.asarray(first, float), np.asarray(second, float)))
    return float((greater.mean() + 1) / 2)


def magnitude(a: float) -> str:
    """ "negligible", "small", "medium" or "large", as Vargha and Delaney call it."""
    return next((word for limit, word in _MAGNITUDES if max(a, 1 - a) >= limit), "negligible")


def interval(
    groups: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean over `groups` of each group's mean, by the hierarchical bootstrap.

    Tasks are the groups, seeds the values: tasks are drawn with replacement, then seeds within each task drawn.  Few
    groups make it too narrow (with 3 of them, resampling knows 10 combinations).
    """
    rng = np.random.default_rng(seed)
    count = len(groups)
    drawn = rng.integers(0, count, size=(count, resamples))
    means = np.zeros(resamples)
    for place in drawn:
        for index, group in enumerate(groups):
            here = np.flatnonzero(place == index)
            values = np.asarray(group, dtype=float)
            means[here] += values[rng.integers(0, len(values), size=(len(here), len(values)))].mean(axis=1)
    low, high = np.quantile(means / count, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
