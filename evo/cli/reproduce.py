"""`evo reproduce`: checks a folder of measured results against its own data; on a GPU it times champions again."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError, EvoError

if TYPE_CHECKING:
    from analysis.reproduce import Reproduced


def add(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="check a folder of measured results against its own data; on a GPU time its champions again",
        description="Makes the decisions of its runs, its tables and the figures of its README.md again, and compares. "
        "On a GPU it evaluates the best kernel of each run again. "
        "Exit code 0: nothing differs; 1: something does; 2: misuse.",
    )
    reproduce.add_argument("folder", type=Path, metavar="DIR", help="a folder of runs/reference, or one like it")
    common.add_gpus(reproduce)
    common.add_plugins(reproduce)
    reproduce.set_defaults(command=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of results, got {folder}; check the path")
    count: Counter[str] = Counter()
    for check in _checks(folder, arguments.gpus):
        count[check.outcome] += 1
        common.say(str(check))
    if set(count) <= {"not checked"}:
        raise ConfigError(
            f"expected runs, tables with their data, or a README.md with figures in {folder}, got nothing to check"
        )
    common.say(", ".join(f"{count[outcome]} {outcome}" for outcome in ("same", "differs", "not checked")))
    return common.EXIT_NOT_OK if count["differs"] else 0


def _checks(folder: Path, gpus: str | None) -> Iterator[Reproduced]:
    with common.pyarrow_for("the figures of campaigns, which are read with it"):
        from analysis import reproduce
    runs = reproduce.stores(folder)
    for run in runs:
        yield _decisions(run)
        yield from reproduce.champion(run)
    yield from reproduce.statistics(folder)
    yield reproduce.document(folder)
    yield from _times(runs, gpus)


def _decisions(run: Path) -> Reproduced:
    from analysis.reproduce import Agreement, Reproduced
    from evo import api

    what = f"decisions of {run}"
    try:
        redone = api.replay(run)
    except EvoError as error:
        return Reproduced(what, Agreement.UNCHECKED, str(error))
    if different := [decision for decision in redone if not decision.same]:
        return Reproduced(what, Agreement.DIFFERS, f"{len(different)} of {len(redone)}; evo replay {run} shows them")
    return Reproduced(f"{len(redone)} {what}", Agreement.SAME)


def _times(runs: list[Path], gpus: str | None) -> Iterator[Reproduced]:
    """Yields what the best kernel of each run comes to on a GPU of this machine.

    A machine may give other times, so these differ only if the kernel is wrong or surely no faster any more.
    """
    from analysis.reproduce import Agreement, Reproduced
    from evo.core.settings import RunConfig
    from evo.search import evaluators
    from fitness.devices import choose

    device, why = choose(gpus, lambda: evaluators.find_gpus(RunConfig.target))
    if not runs or device != "gpu":
        reason = f"no GPU measures here ({why})" if runs else "the folder holds no store with a kernel to time"
        yield Reproduced("times of champions", Agreement.UNCHECKED, reason)
        return
    for run in runs:
        yield _time(run, gpus)


def _time(run: Path, gpus: str | None) -> Reproduced:
    from analysis.reproduce import Agreement, Reproduced
    from evo import api
    from evo.storage.best import best_source
    from evo.storage.queries import RunReader

    with RunReader(run) as reader:
        best, config = reader.best(), reader.info.config
    what = f"time of the best of {run}"
    if best is None or best.fitness is None or not best.index or config.device != "gpu":
        return Reproduced(what, Agreement.UNCHECKED, "it has no measured kernel but the seed")
    try:
        baseline = None if config.baseline == "seed" else config.baseline
        with api.Evaluator(
            config.task,
            gpus=gpus,
            target=config.target,
            baseline=baseline,
            allow_delegation=config.allow_delegation,
        ) as evaluator:
            again = evaluator.evaluate(best_source(best))
    except EvoError as error:
        return Reproduced(what, Agreement.UNCHECKED, str(error))
    if again.fitness is None:
        return Reproduced(what, Agreement.DIFFERS, f"{again.verdict} at stage {again.stage}: {again.message}")
    slower = best.fitness.ci95[0] > 1 >= again.fitness.ci95[0]
    detail = f"{again.fitness} now, {best.fitness} then"
    return Reproduced(what, Agreement.DIFFERS if slower else Agreement.SAME, detail)
