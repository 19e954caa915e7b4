"""`evo suite check`: finds the files of a benchmark suite that this machine can take as tasks, and why not the others.

`evo suite summary`: what searches over a suite came to, from the figures that campaigns left.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError, StoreError
from evo.core.text import counted
from evo.search import evaluators

if TYPE_CHECKING:
    from analysis.suite import SuiteKernel
    from evo.campaign.suite import SuiteSelection
    from fitness.suites.check import CheckOutcome


def add(commands: Any) -> None:
    subcommands = commands.add_parser("suite", help="read a benchmark suite from a checkout").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = subcommands.add_parser(
        "check",
        help="take every file through record, compile and verify",
        description="Makes a task of every file and verifies its kernel, or a seed kernel if it has none: on a GPU if "
        "the machine has one, else by Triton's interpreter. Exit code 0: all verified; 1: not all.",
    )
    check.add_argument("suite", metavar="SUITE", help="tritonbench, tritonbench-t, kernelbench, or that of a plug-in")
    add_selection(check, required=True)
    check.add_argument("--tasks", type=Path, metavar="DIR", help="keep the task folders here (default: thrown away)")
    check.add_argument("--workers", type=int, metavar="W", help="files at once (default: one a CPU)")
    check.add_argument("--json", action="store_true", help="one JSON object a line and file")
    common.add_target(check)
    check.set_defaults(command=_check)
    summary = subcommands.add_parser(
        "summary",
        help="what campaigns over a suite came to, in one table",
        description="Prints the summary of evo bench from the kernels.parquet of its campaigns; no checkout and no run "
        "folder is needed. A file that several campaigns searched counts as the first of them found it.",
    )
    summary.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="folder of a campaign (evo bench --out)")
    summary.set_defaults(command=_summary)


def add_selection(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Adds the arguments that choose files of a suite; required: whether a checkout has to be named."""
    parser.add_argument("--path", type=Path, required=required, metavar="DIR", help="the checkout of a suite")
    parser.add_argument("--only", metavar="A,B", help="these files alone, by name without .py; * stands for anything")
    parser.add_argument(
        "--seeds",
        type=Path,
        metavar="DIR",
        help="KernelBench, TritonBench-T: seed kernels NAME.py (go before evo's own)",
    )
    parser.add_argument(
        "--no-seeds",
        action="store_true",
        help="KernelBench, TritonBench-T: do not use evo's own seed kernels; models write the first ones",
    )
    parser.add_argument(
        "--gib",
        type=float,
        metavar="G",
        help="KernelBench: problems with more inputs, state and outputs are made smaller (default: 2)",
    )


def selection(arguments: argparse.Namespace, name: str) -> SuiteSelection:
    """Returns the files that the arguments of `add_selection` choose of the suite of that name."""
    from evo.campaign.suite import SuiteSelection

    return SuiteSelection(name, arguments.path, arguments.only, arguments.seeds, arguments.gib, not arguments.no_seeds)


def _check(arguments: argparse.Namespace) -> int:
    from evo.campaign.suite import line, outcomes
    from evo.search.options import check_workers
    from fitness.devices import choose
    from fitness.frontend.target import get_target

    check_workers(arguments.workers)
    workers = evaluators.workers(arguments.workers)
    common.one_thread_each()
    target = get_target(arguments.target)
    chosen = selection(arguments, arguments.suite)
    files = chosen.files()
    device, _ = choose(arguments.gpus, lambda: evaluators.find_gpus(arguments.target))
    where = "verifying on the GPU" if device == "gpu" else "verifying by Triton's interpreter, no GPU is used"
    print(f"{counted(len(files), 'file')} for {target.name}, {where}", file=sys.stderr, flush=True)
    found = []
    with _tasks_folder(arguments.tasks) as folder:
        for outcome in outcomes(chosen, files, folder, arguments.target, int(device == "gpu"), workers):
            found.append(outcome)
            common.say(json.dumps(dataclasses.asdict(outcome)) if arguments.json else line(outcome))
    if not arguments.json:
        common.say("\n" + _totals(found, chosen.suite.stages))
    return 0 if all(outcome.searchable(models=True) for outcome in found) else common.EXIT_NOT_OK


def _summary(arguments: argparse.Namespace) -> int:
    from analysis.suite import summary

    settings = {folder: _settings(folder) for folder in arguments.folders}
    suites = {folder: found["suite"] for folder, found in settings.items()}
    if len(set(suites.values())) > 1:
        got = ", ".join(f"{suite or 'tasks'} in {folder}" for folder, suite in suites.items())
        raise ConfigError(f"expected campaigns over one suite, got {got}; sum them up one by one")
    kernels = _kernels(arguments.folders)
    if len({k.outcome.estimated for k in kernels if k.outcome}) > 1:
        raise ConfigError(
            "expected campaigns that measured, or campaigns that estimated, got both; speedups of one kind are not "
            "compared with the other's: sum them up apart"
        )
    try:
        first = settings[arguments.folders[0]]
        text = summary(kernels, with_pytorch=first["with_pytorch"], suite=bool(first["suite"]))
    except ValueError as error:
        raise StoreError(f"nothing to sum up: {error}; go on with evo bench") from None
    common.say(text.removesuffix("\n"))
    return 0


def _settings(folder: Path) -> dict[str, Any]:
    """Returns the suite of a campaign; "" if its tasks are of none."""
    from evo.campaign.spec import FILE as CAMPAIGN
    from evo.campaign.suite import FILE, read_settings

    if (folder / CAMPAIGN).exists() and not (folder / FILE).exists():
        return {"suite": "", "with_pytorch": False}
    return read_settings(folder)


def _kernels(folders: Sequence[Path]) -> list[SuiteKernel]:
    with common.pyarrow_for("the figures of campaigns, which are read with it"):
        from analysis import suite_kernels as stored
    return stored.merged(stored.read_kernels(folder / stored.FILE) for folder in folders)


@contextmanager
def _tasks_folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="evo-suite-") as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--tasks: expected a folder to write to, got: {error}; choose another") from error
    yield wanted.resolve()


def _totals(outcomes: Sequence[CheckOutcome], stages: Sequence[str]) -> str:
    count = Counter(stage for outcome in outcomes for stage in outcome.stages)
    reached = ", ".join(f"{count[stage]} {stage}" for stage in stages)
    alone = sum(outcome.alone for outcome in outcomes)
    return f"{counted(len(outcomes), 'file')}: {reached}" + (f", {alone} of a reference alone" if alone else "")
