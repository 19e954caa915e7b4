"""`evo compare`: tests whether one run or campaign is worse than another, for people and for CI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError
from evo.core.text import counted, quoted

if TYPE_CHECKING:
    from analysis.outcomes import Outcome
    from analysis.regression import Pair, RegressionResult

    # With the folder of its run; None if a campaign keeps it, because that keeps only runs that came to their end.
    Run = tuple[Outcome, Path | None]

SHOWN = 3  # runs of a kind in a message


def add(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="is B worse than A? two runs or two campaigns",
        description="Compares the best speedups of B with those of A, paired by variant, task and seed. Exit code 0: "
        "no regression; 1: B is worse beyond noise; 2: misuse, or a run that is not finished.",
    )
    compare.add_argument("a", type=Path, metavar="A", help="a run, a folder of runs, or a campaign, finished")
    compare.add_argument("b", type=Path, metavar="B", help="the same, of the runs to test")
    compare.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from analysis.regression import find_regression, pair_up

    a, b = _runs(arguments.a), _runs(arguments.b)
    try:
        pairs = pair_up([outcome for outcome, _ in a], [outcome for outcome, _ in b])
    except ValueError as error:
        raise ConfigError(f"cannot compare {arguments.a} with {arguments.b}: {error}") from error
    _check_ended(pairs, [*a, *b])
    verdict = find_regression(pairs)
    left_out = len(a) + len(b) - 2 * len(pairs)
    if left_out:
        have = "has" if left_out == 1 else "have"
        common.say(f"{counted(left_out, 'run')} {have} no partner of the same variant, task and seed; left out")
    _say(verdict, estimated=pairs[0][0].estimated)
    return common.EXIT_NOT_OK if verdict.worse else 0


def _runs(folder: Path) -> list[Run]:
    """Returns the outcomes of a campaign, of a run, or of all runs in a folder (named by their own task and seed)."""
    from analysis.outcomes import FILE, load, outcome_of
    from evo.storage import store

    if (folder / FILE).is_file():
        return [(outcome, None) for outcome in load(folder / FILE)]
    if (folder / store.FILE).is_file():
        return [(outcome_of(folder), folder)]
    runs: list[Run] = [(outcome_of(f), f) for f in (path.parent for path in sorted(folder.glob(f"*/{store.FILE}")))]
    if not runs:
        raise ConfigError(
            f"expected a run, a folder of runs or a finished campaign at {folder}, found none; {_instead(folder)}"
        )
    keys = [(o.task, o.seed) for o, _ in runs]
    twice = sorted({f"{task}, seed {seed}" for task, seed in keys if keys.count((task, seed)) > 1})
    if twice:
        raise ConfigError(
            f"{folder}: expected one run a task and seed, found several of {'; '.join(twice)}; name one of them"
        )
    return runs


def _instead(folder: Path) -> str:
    """Returns what to do about a folder that holds nothing to compare."""
    from evo.campaign.spec import FILE

    if (folder / FILE).exists():
        return f"it is a campaign without outcomes, which `evo ablate {quoted(folder)}` writes of its finished runs"
    return "check the path"


def _check_ended(pairs: Sequence[Pair], runs: Sequence[Run]) -> None:
    """Raises ConfigError if a run of a pair is not finished: it may still find something better."""
    paired = {id(outcome) for pair in pairs for outcome in pair}
    ended: dict[bool, list[str]] = {False: [], True: []}
    left: list[Path] = []
    for folder in (folder for outcome, folder in runs if folder is not None and id(outcome) in paired):
        state, over = _state(folder)
        ended[over].append(state)
        left += [] if over or folder in left else [folder]
    if left:
        commands = " and ".join(f"`evo resume {quoted(folder)}`" for folder in left[:SHOWN])
        beside = f", beside {_few(ended[True])}" if ended[True] else ""
        raise ConfigError(
            f"expected runs that came to their end, got {_few(ended[False])}{beside}; go on by {commands} and compare "
            f"then"
        )


def _state(folder: Path) -> tuple[str, bool]:
    """Returns a text on a run's spent budget and its end, and whether it came to its own end."""
    from evo.search import termination
    from evo.storage.store import RunReader

    with RunReader(folder) as run:
        spent = run.spent()
        over, how = termination.came_to_end(run), termination.ended(run) or "without an end"
        return f"{folder} at {spent} of {run.info.config.budget} candidates ({how})", over


def _few(texts: Sequence[str]) -> str:
    """Returns a few of them as text, and how many more there are."""
    different = list(dict.fromkeys(texts))
    more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return f"{', '.join(different[:SHOWN])}{more}"


def _say(verdict: RegressionResult, *, estimated: bool) -> None:
    from analysis.regression import ALPHA, FEWEST_PAIRS
    from analysis.stats import magnitude

    mark = " (estimated)" if estimated else ""
    low, high = verdict.ci
    pairs = counted(verdict.pairs, "pair")
    common.say(f"B / A, best speedup{mark}: {verdict.ratio:.3f} [{low:.3f}, {high:.3f}] over {pairs}")
    common.say(f"A12 {verdict.a12:.2f} ({magnitude(verdict.a12)})")
    if verdict.p is None or verdict.p_wilcoxon is None:
        common.say(
            f"the interval is that of the runs' own times: fewer than {FEWEST_PAIRS} pairs cannot show what another "
            f"seed of the search would change"
        )
    else:
        names = ("worse", "better")
        tests = (
            f"{name}: p = {p:.4f} (permutation), {w:.4f} (Wilcoxon)"
            for name, p, w in zip(names, verdict.p, verdict.p_wilcoxon, strict=True)
        )
        common.say("; ".join(tests))
    found = "B is worse" if verdict.worse else "B is better" if verdict.better else "no difference beyond noise"
    common.say(f"{found} (one-sided, at {ALPHA:g})" if verdict.p else found)
