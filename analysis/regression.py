"""Tests whether the runs B are worse than the runs A, for `evo compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from analysis import stats
from analysis.outcomes import Outcome
from evo.search.budget import in_words

ALPHA = 0.05
# With fewer pairs even the best case of a one-sided permutation test, 1 / 2^pairs, is not below ALPHA.
FEWEST_PAIRS = 5

_SHOWN = 12  # names of a kind in a message, and characters of a hash

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True)
class RegressionResult:
    """`ratio`: geometric mean over tasks and seeds of B's best over A's, with its 95% interval.

    `p`: one-sided, that B is worse and better, of the permutation test over pairs and of Wilcoxon's.  With too few
    pairs it is None; then the interval comes from the intervals of the runs and decides.
    """

    pairs: int
    ratio: float
    ci: tuple[float, float]
    a12: float  # that a run of B ends above one of A, mean over tasks
    worse: bool
    better: bool
    p: tuple[float, float] | None = None
    p_wilcoxon: tuple[float, float] | None = None


def pair_up(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[Pair]:
    """Returns the pairs of runs of the same variant, task and seed.

    Raises ValueError without any, or if two runs cannot be compared: they differ in task (as far as both hashes are
    known), target or budget, or one is estimated and one measured.
    """
    known = {(o.variant, o.task, o.seed): o for o in a}
    pairs = [(known[o.variant, o.task, o.seed], o) for o in b if (o.variant, o.task, o.seed) in known]
    if not pairs:
        raise ValueError(f"no variant, task and seed that both have; A has {_held(a)}; B has {_held(b)}")
    for first, second in pairs:
        if why := _incomparable(first, second):
            name = ", ".join(str(x) for x in (second.variant, second.task, f"seed {second.seed}") if x)
            raise ValueError(f"{name}: {why}")
    return pairs


def _incomparable(a: Outcome, b: Outcome) -> str:
    """Returns why two runs of one name cannot be compared; "" if they can."""
    budgets = [in_words(o.budget, o.gpu_seconds) for o in (a, b)]
    if budgets[0] != budgets[1]:
        return f"budgets differ, {' and '.join(budgets)}"
    if a.estimated != b.estimated:
        return "one is estimated, the other measured on a GPU"
    if a.task_hash and b.task_hash and a.task_hash != b.task_hash:
        return f"these are different tasks of one name, of hash {a.task_hash[:_SHOWN]} and {b.task_hash[:_SHOWN]}"
    if a.target and b.target and a.target != b.target:
        return f"targets differ, {a.target} and {b.target}"
    return ""


def _held(outcomes: Sequence[Outcome]) -> str:
    """Lists the variants, tasks and seeds of `outcomes`, a few of each."""
    texts = []
    for kind, values in (
        ("variants", sorted({o.variant or "none (runs of their own)" for o in outcomes})),
        ("tasks", sorted({o.task for o in outcomes})),
        ("seeds", sorted({o.seed for o in outcomes})),
    ):
        more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        texts.append(f"{kind} {', '.join(map(str, values[:_SHOWN]))}{more}")
    return ", ".join(texts) if outcomes else "no finished runs"


def find_regression(pairs: Sequence[Pair], *, alpha: float = ALPHA) -> RegressionResult:
    """Tests whether B is worse or better beyond noise at `alpha`; runs without a gain count as 1.0x."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for a, b in pairs:
        groups.setdefault((a.variant, a.task), []).append((a, b))
    logs = [[math.log(b.reported / a.reported) for a, b in group] for group in groups.values()]
    flat = [d for group in logs for d in group]
    a12 = math.fsum(
        stats.a12([b.reported for _, b in group], [a.reported for a, _ in group]) for group in groups.values()
    ) / len(groups)
    if len(pairs) < FEWEST_PAIRS:
        low, high = _from_runs(pairs, alpha)
        ratio = math.exp(math.fsum(flat) / len(flat))
        return RegressionResult(len(pairs), ratio, (low, high), a12, worse=high < 1, better=low > 1)
    low, high = (math.exp(end) for end in stats.interval(logs, level=1 - alpha))
    ratio = math.exp(math.fsum(math.fsum(group) / len(group) for group in logs) / len(logs))
    p = stats.sign_flips(flat, alternative="less"), stats.sign_flips(flat, alternative="greater")
    wilcoxon = stats.wilcoxon(flat, alternative="less"), stats.wilcoxon(flat, alternative="greater")
    return RegressionResult(len(pairs), ratio, (low, high), a12, p[0] < alpha, p[1] < alpha, p, wilcoxon)


def _from_runs(pairs: Sequence[Pair], alpha: float) -> tuple[float, float]:
    """Returns the interval of the mean ratio from each run's own 95% interval.

    The intervals are taken as independent and normal in the logarithm.  They contain the noise of timing, but not the
    difference that another seed of the search would make.
    """
    quantile = NormalDist().inv_cdf(1 - alpha / 2)
    centre = math.fsum(math.log(b.reported / a.reported) for a, b in pairs) / len(pairs)
    widths = [
        math.log(o.reported_ci95[1] / o.reported_ci95[0]) / (2 * NormalDist().inv_cdf(0.975))
        for pair in pairs
        for o in pair
    ]
    reach = quantile * math.sqrt(math.fsum(w * w for w in widths)) / len(pairs)
    return math.exp(centre - reach), math.exp(centre + reach)
