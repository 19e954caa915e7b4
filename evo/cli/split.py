"""The halves of `evo run`: `--propose-only` proposes and evaluates nothing, `--evaluate-only` the other way round.

Both work on one run folder, one after the other, and it may be copied between machines.  Proposing needs no GPU and
starts no evaluator; evaluating needs no network.  The first to evaluate decides on what the run is evaluated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from evo.cli import common
from evo.cli.search import CommandLine, show_end
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from evo.api import Settings


def add_options(run: argparse.ArgumentParser) -> None:
    half = run.add_mutually_exclusive_group()
    half.add_argument(
        "--propose-only", type=int, metavar="N", help="store N candidates in --run-dir, new or not, evaluate none"
    )
    half.add_argument(
        "--evaluate-only", action="store_true", help="evaluate what is pending in --run-dir, propose nothing"
    )


def propose(arguments: argparse.Namespace, settings: Settings) -> int:
    """`settings`: those that were given."""
    from evo import api
    from evo.search.termination import SILENT

    folder = _folder(arguments, "--propose-only N")
    outcome = api.propose(folder, arguments.propose_only, arguments.task, progress=CommandLine(), **settings)
    if outcome.reason == SILENT and not outcome.proposed:
        return common.EXIT_NOT_OK
    return common.EXIT_INTERRUPTED if outcome.reason == "interrupted" else 0


def evaluate(arguments: argparse.Namespace, settings: Settings) -> int:
    """`settings`: those that were given."""
    from evo import api

    folder = _folder(arguments, "--evaluate-only")
    result = api.evaluate_pending(folder, arguments.task, progress=CommandLine(), **settings)
    return 0 if result is None else show_end(result)


def _folder(arguments: argparse.Namespace, option: str) -> Path:
    if arguments.run_dir is None:
        raise ConfigError(f"{option}: expected the folder of the run, got none; add --run-dir DIR")
    folder: Path = arguments.run_dir
    return folder
