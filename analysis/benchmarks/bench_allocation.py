"""Shows what allocating a campaign's budget by recent progress gains over equal budgets, on recorded courses.

    python -m analysis.benchmarks.bench_allocation

No search runs.  The trials of a campaign (runs/reference/tritonbench-g, 64 candidates a kernel) say what each search
had after each candidate.  Campaigns of 24 of its kernels are drawn; each may spend 24 x 32 candidates.  Equal budgets
give each kernel 32.  The policy of `evo/campaign/allocation.py` gives what it would have given, at most the 64 recorded
ones.  It is a simulation on recorded courses: a search that goes on after a pause makes the same candidates as one
without, but for noise of measured times.  Attainable times have no part in it: these runs stored none.

The policy's numbers were chosen on the kernels called "development"; those called "test" had no part in that.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from evo.campaign import allocation
from evo.campaign.allocation import RunProgress, first_budget, next_budgets

TRIALS = Path("runs/reference/tritonbench-g/trials.parquet")
Curve = Sequence[float]  # best speedup after 0, 1, ... candidates; only gains beyond their interval count


def curves(path: Path, length: int) -> dict[str, Curve]:
    """Returns the course of each run that has at least `length` candidates."""
    rows = pq.read_table(path, columns=["run", "trial", "finished", "speedup", "ci_low"]).to_pylist()
    found: dict[str, list[float]] = {}
    for row in sorted((r for r in rows if r["trial"] and r["finished"] is not None), key=lambda r: r["finished"]):
        curve = found.setdefault(row["run"], [1.0])
        gain = row["speedup"] if row["speedup"] is not None and row["ci_low"] > 1 else 1.0
        curve.append(max(curve[-1], gain))
    return {run: curve[: length + 1] for run, curve in sorted(found.items()) if len(curve) > length}


def allocated(runs: Mapping[str, Curve], budget: int) -> dict[str, int]:
    """Returns how many candidates the policy gives each run."""
    spent = dict.fromkeys(runs, first_budget(budget))
    for number in range(1, allocation.ROUNDS + 1):
        progress = {name: RunProgress(curve[: spent[name] + 1]) for name, curve in runs.items()}
        spent |= next_budgets(progress, budget, number)
    return spent


def mean_log(runs: Mapping[str, Curve], spent: Mapping[str, int]) -> float:
    return math.fsum(math.log(runs[name][count]) for name, count in spent.items()) / len(runs)


def compare(runs: Mapping[str, Curve], kernels: int, budget: int, draws: int, seed: int) -> dict[str, float]:
    """Returns geometric means of drawn campaigns, and the ratio of the policy's to equal budgets with its spread."""
    rng = random.Random(seed)
    equal, policy, double = [], [], []
    for _ in range(draws):
        drawn = {name: runs[name] for name in rng.sample(list(runs), min(kernels, len(runs)))}
        spent = allocated(drawn, budget)
        assert sum(spent.values()) <= budget * len(drawn)
        equal.append(mean_log(drawn, dict.fromkeys(drawn, budget)))
        policy.append(mean_log(drawn, spent))
        double.append(mean_log(drawn, dict.fromkeys(drawn, int(allocation.MOST * budget))))
    ratios = sorted(p - e for p, e in zip(policy, equal, strict=True))
    return {
        "equal": math.exp(statistics.fmean(equal)),
        "policy": math.exp(statistics.fmean(policy)),
        "twice the budget": math.exp(statistics.fmean(double)),
        "policy / equal": math.exp(statistics.fmean(ratios)),
        "5 % of campaigns below": math.exp(ratios[draws // 20]),
        "5 % of campaigns above": math.exp(ratios[-1 - draws // 20]),
        "campaigns with a gain": sum(r > 0 for r in ratios) / draws,
    }


def halves(runs: Mapping[str, Curve]) -> dict[str, dict[str, Curve]]:
    """Returns the kernels that the policy was chosen on, the others, and all."""
    names = list(runs)
    random.Random(1).shuffle(names)
    development = names[: len(names) // 2]
    return {
        "development": {name: runs[name] for name in development},
        "test": {name: runs[name] for name in names if name not in set(development)},
        "all": dict(runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=Path, default=TRIALS)
    parser.add_argument("--kernels", type=int, default=24)
    parser.add_argument("--budget", type=int, default=32, help="equal share of a kernel (default: 32)")
    parser.add_argument("--draws", type=int, default=2000, help="campaigns drawn (default: 2000)")
    arguments = parser.parse_args()
    runs = curves(arguments.trials, int(allocation.MOST * arguments.budget))
    for name, half in halves(runs).items():
        found = compare(half, arguments.kernels, arguments.budget, arguments.draws, seed=0)
        print(f"{name}, {len(half)} kernels: " + ", ".join(f"{what} {value:.3f}" for what, value in found.items()))


if __name__ == "__main__":
    main()
