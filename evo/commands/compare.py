"""`evo compare`: whether one run or campaign is worse than another, for people and for CI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.commands import parts
from evo.errors import ConfigError
from evo.plain import counted

if TYPE_CHECKING:
    from analysis.outcomes import Outcome
    from analysis.regression import Verdict


def add(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="is B worse than A? two runs or two campaigns",
        description="Compares the best speedups of B with those of A, paired by arm, task and seed. Exit code 0: no "
        "regression; 1: B is worse beyond noise; 2: misuse.",
    )
    compare.add_argument("a", type=Path, metavar="A", help="a run, a folder of runs, or a campaign that is finished")
    compare.add_argument("b", type=Path, metavar="B", help="the same of what is to be judged")
    compare.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from analysis.regression import judge, pair_up

    a, b = _outcomes(arguments.a), _outcomes(arguments.b)
    try:
        pairs = pair_up(a, b)
    except ValueError as error:
        raise ConfigError(f"cannot compare {arguments.a} with {arguments.b}: {error}") from error
    verdict = judge(pairs)
    left_out = len(a) + len(b) - 2 * len(pairs)
    if left_out:
        have = "has" if left_out == 1 else "have"
        parts.say(f"{counted(left_out, 'run')} {have} no partner of the same arm, task and seed; left out")
    _say(verdict, estimated=pairs[0][0].estimated)
    return parts.EXIT_NOT_OK if verdict.worse else 0


def _outcomes(folder: Path) -> list[Outcome]:
    """Of a campaign, of a run, or of all runs in a folder (each named by its own task and seed)."""
    from analysis.outcomes import FILE, load, outcome_of
    from evo import store

    if (folder / FILE).is_file():
        return load(folder / FILE)
    if (folder / store.FILE).is_file():
        return [outcome_of(folder)]
    runs = [outcome_of(path.parent) for path in sorted(folder.glob(f"*/{store.FILE}"))]
    if not runs:
        raise ConfigError(f"expected a run, a folder of runs or a finished campaign at {folder}, found none")
    keys = [(o.task, o.seed) for o in runs]
    twice = sorted({f"{task}, seed {seed}" for task, seed in keys if keys.count((task, seed)) > 1})
    if twice:
        raise ConfigError(f"{folder}: expected one run a task and seed, found several of {'; '.join(twice)}")
    return runs


def _say(verdict: Verdict, *, estimated: bool) -> None:
    from analysis.regression import ALPHA, FEWEST_PAIRS
    from analysis.stats import magnitude

    mark = " (estimated)" if estimated else ""
    low, high = verdict.ci
    pairs = counted(verdict.pairs, "pair")
    parts.say(f"B / A, best speedup{mark}: {verdict.ratio:.3f} [{low:.3f}, {high:.3f}] over {pairs}")
    parts.say(f"A12 {verdict.a12:.2f} ({magnitude(verdict.a12)})")
    if verdict.p is None or verdict.p_wilcoxon is None:
        parts.say(
            f"the interval is that of the runs' own times: fewer than {FEWEST_PAIRS} pairs cannot show what another "
            f"seed of the search would change"
        )
    else:
        names = ("worse", "better")
        tests = (
            f"{name}: p = {p:.4f} (permutation), {w:.4f} (Wilcoxon)"
            for name, p, w in zip(names, verdict.p, verdict.p_wilcoxon, strict=True)
        )
        parts.say("; ".join(tests))
    found = "B is worse" if verdict.worse else "B is better" if verdict.better else "no difference beyond noise"
    parts.say(f"{found} (one-sided, at {ALPHA:g})" if verdict.p else found)
