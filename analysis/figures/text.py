"""Writes numbers, shares with their intervals, and tables as documents show them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from analysis import stats

Figures = dict[str, str]  # the figures of one folder by name; a text of several lines is a table


def share(count: int, of: int) -> str:
    """Returns a share in percent with its 95% interval (Wilson)."""
    low, high = stats.share_interval(count, of)
    return f"{percent(count, of)} [{100 * low:.0f} %, {100 * high:.0f} %]"


def percent(count: float, of: float = 1.0) -> str:
    return f"{100 * count / of:.0f} %"


def times(value: float) -> str:
    return f"{value:.2f}×"


def geometric(speedups: Sequence[float]) -> str:
    """Returns the geometric mean with its 95% interval, by bootstrap over the speedups."""
    low, high = stats.interval([[math.log(s)] for s in speedups])
    return f"{times(stats.geometric_mean(speedups))} [{math.exp(low):.2f}, {math.exp(high):.2f}]"


def arithmetic(speedups: Sequence[float]) -> str:
    """Returns the mean with its 95% interval, by bootstrap over the speedups."""
    low, high = stats.interval([[s] for s in speedups])
    return f"{times(math.fsum(speedups) / len(speedups))} [{low:.2f}, {high:.2f}]"


def median(speedups: Sequence[float]) -> str:
    return times(statistics.median(speedups))


def within(value: float, low: float, high: float, *, digits: int = 2) -> str:
    """Returns a number with its interval."""
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
