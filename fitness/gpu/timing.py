"""Computes statistics of paired timings: is the candidate faster, by how much, and is that more than noise.

Pair i holds one time of the candidate and one of the baseline, taken one after the other.  Everything is computed on
the ratios baseline / candidate of the pairs.  What slows both (clock, temperature) cancels, and outliers move a median
little.  Above 1 is faster than the baseline.

The interval of a median is exact and free of assumptions about the shape of the noise.  The number of pairs below the
true median is binomial(n, 1/2), so two order statistics enclose it with a known probability. (W. R. Thompson, "On
confidence ranges for the median", Annals of Mathematical Statistics 7, 1936; David and Nagaraja, "Order Statistics",
section 7.1.) Pairs must be independent; alternating the order within pairs and flushing caches makes them so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALPHA = 0.05  # chance that an interval misses the true median, over all looks of a sequential comparison together.
LOOKS = (10, 20, 30)  # numbers of pairs after which a comparison may stop.
EQUAL = 0.005  # an interval within 1 +- EQUAL says "no difference that matters"; measuring on would be waste.

# Microseconds by which samples of equal kernels may differ, again and again: what comes before a sample and between its
# events and its work is not the same for both.  More pairs do not remove that; longer samples make it small.
RESOLUTION_US = 1.0

# The baseline taking that much longer than beside itself: another process uses the GPU, in slices of milliseconds,
# which hit long samples more than short ones.
DRIFT = 1.1


@dataclass(frozen=True)
class Ratio:
    """The median of baseline / candidate over `pairs` pairs, and its interval of confidence 1 - `alpha`."""

    ratio: float
    low: float
    high: float
    pairs: int
    alpha: float = ALPHA

    @property
    def excludes_one(self) -> bool:
        return self.low > 1 or self.high < 1


def median_interval(values: Sequence[float] | np.ndarray, alpha: float = ALPHA) -> tuple[float, float]:
    """Returns the exact interval of the median of `values` with coverage of at least 1 - `alpha`.

    (-inf, inf) if there are too few values for any pair of order statistics (below 6 for alpha = 0.05).
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    k = _order_statistic(n, alpha)
    if k < 1:
        return -math.inf, math.inf
    return float(ordered[k - 1]), float(ordered[n - k])


@functools.cache
def _order_statistic(n: int, alpha: float) -> int:
    """Returns k, for which P(X <= k - 1) <= alpha / 2 < P(X <= k); X is binomial(n, 1/2)."""
    from scipy import stats  # a second of every process that imports this module, and few take times.

    return int(stats.binom.ppf(alpha / 2, n, 0.5)) if n else 0


def paired_ratio(candidate_us: Sequence[float], baseline_us: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """Returns median and exact interval of the ratios of pairs.

    Times must be positive; both sequences equally long.
    """
    candidate, baseline = np.asarray(candidate_us, dtype=float), np.asarray(baseline_us, dtype=float)
    if candidate.shape != baseline.shape or not len(candidate):
        raise ValueError(f"expected as many baseline as candidate times, got {len(baseline)} and {len(candidate)}")
    if not (np.all(candidate > 0) and np.all(baseline > 0)):
        raise ValueError("times must be positive; got a time of zero or less, so the events did not enclose the work")
    ratios = baseline / candidate
    low, high = median_interval(ratios, alpha)
    return Ratio(float(np.median(ratios)), max(low, 0.0), high, len(ratios), alpha)


@dataclass(frozen=True)
class Stopping:
    """When to stop taking pairs: after `looks[i]` pairs, if the interval at alpha / len(looks) is decided.

    Decided: it excludes 1 (faster or slower), or lies within 1 +- `equal`.  Each look uses its share of alpha.  By
    Bonferroni's inequality the chance that the interval of *any* look misses the true median is at most alpha.  So is
    the chance to call equal times different, however the comparison ends.  Three looks widen the last interval from
    order statistics 10 and 21 to 9 and 22 of 30.
    """

    looks: tuple[int, ...] = LOOKS
    alpha: float = ALPHA
    equal: float = EQUAL

    def __post_init__(self) -> None:
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 1:
            raise ValueError(f"looks must be increasing positive numbers of pairs, got {self.looks}")

    def ratio(self, candidate_us: Sequence[float], baseline_us: Sequence[float]) -> Ratio:
        """Returns the interval at the alpha of one look."""
        return paired_ratio(candidate_us, baseline_us, self.alpha / len(self.looks))

    def decided(self, ratio: Ratio) -> bool:
        equal = ratio.low > 1 - self.equal and ratio.high < 1 + self.equal
        return ratio.pairs >= self.looks[-1] or ratio.excludes_one or equal


def noise_floor(same_against_same: Sequence[float]) -> float:
    """Returns the factor within which ratios of a kernel against itself fell: above 1.

    With m comparisons, another one of the same kernel exceeds the largest of them with probability 1 / (m + 1).  The
    alpha of its own interval comes on top.
    """
    if not len(same_against_same):
        raise ValueError("the noise floor needs at least one comparison of a kernel with itself")
    return float(np.exp(np.max(np.abs(np.log(np.asarray(same_against_same, dtype=float))))))


def resolution(sample_us: float) -> float:
    """Returns the factor within which samples of this length differ by how they are taken: above 1."""
    return 1 + RESOLUTION_US / sample_us


@dataclass(frozen=True)
class BaselineNoise:
    """What timing the baseline beside itself shows: the noise floor (a factor), and its least time in microseconds."""

    floor: float
    us: float

    def drift(self, baseline_us: Sequence[float]) -> float:
        """Returns how many times as long it took beside a candidate (median): 1 up to DRIFT, which inputs may cause."""
        drift = float(np.median(baseline_us)) / self.us
        return drift if drift > DRIFT else 1.0


def counts(ratio: Ratio, floor: float) -> bool:
    """Returns whether a difference counts: the interval excludes 1 and the ratio lies beyond the noise floor.

    floor: a factor.
    """
    return ratio.excludes_one and (ratio.ratio > floor or ratio.ratio < 1 / floor)


def geometric_mean(
    ratios: Sequence[Sequence[float]], generator: np.random.Generator, *, alpha: float = ALPHA, resamples: int = 2000
) -> Ratio:
    """Returns the geometric mean over the cases of each case's median ratio; `ratios[c]` are the pairs of case c.

    The interval is a percentile bootstrap that resamples pairs within each case (Efron and Tibshirani, "An Introduction
    to the Bootstrap", chapter 13): the cases are the task's, not a sample of cases.
    """
    if not ratios or not all(len(r) for r in ratios):
        raise ValueError("every case needs at least one pair")
    logs = [np.log(np.asarray(r, dtype=float)) for r in ratios]
    means = np.zeros(resamples)
    for case in logs:
        drawn = generator.integers(0, len(case), (resamples, len(case)))
        means += np.median(case[drawn], axis=1) / len(logs)
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    centre = math.fsum(float(np.median(case)) for case in logs) / len(logs)
    pairs = sum(len(case) for case in logs)
    return Ratio(math.exp(centre), float(np.exp(low)), float(np.exp(high)), pairs, alpha)
