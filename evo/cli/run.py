"""`evo run`: searches for a faster kernel.

It can do half of a search: `--propose-only` evaluates nothing, `--evaluate-only` proposes nothing.  Both work
alternately on one run folder, which may be copied between machines.  Proposing needs no GPU and starts no evaluator;
evaluating needs no network.  The first evaluation decides which device the run uses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.cli.search import CommandLine, show_end
from evo.core.errors import ConfigError
from evo.core.records import StopReason
from evo.core.settings import CANDIDATES_AN_ISLAND, DEFAULT_CONCURRENCY, DEFAULT_TASK, ISLANDS, RunConfig

if TYPE_CHECKING:
    from evo.search.options import Settings

# Settings of `evo.search` by the names of their options.
_SETTINGS = {
    **{name: name for name in ("budget", "seed", "strategy", "operators", "islands", "workers", "target", "gpus")},
    **{name: name for name in ("ray_address", "gpu_seconds", "screen_budget")},
    **{name: name for name in ("llm_concurrency", "max_tokens", "max_usd", "guidance", "baseline", "allow_delegation")},
    "stop_at_attainable": "stop_at_attainable",
    "progressive": "progressive",
    "model": "models",
    "models": "models_file",
}


def add(commands: Any) -> None:
    run = commands.add_parser("run", help="search for a faster kernel")
    run.add_argument(
        "task", nargs="?", metavar="TASK", help=f"a built-in task or a task folder (default: {DEFAULT_TASK})"
    )
    run.add_argument("--budget", type=int, metavar="N", help=f"candidates to evaluate (default: {RunConfig.budget})")
    run.add_argument("--gpu-seconds", type=float, metavar="X", help="the run ends when a GPU measured for so long, too")
    common.add_stop(run)
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the run (default: runs/TASK-NUMBER)")
    run.add_argument("--seed", type=int, metavar="S", help=f"of all randomness (default: {RunConfig.seed})")
    run.add_argument("--strategy", help="evolve (default), random or hillclimb; best-of-n and tritonforge ask models")
    run.add_argument("--operators", metavar="A,B", help="names of operators (default: the strategy's)")
    run.add_argument(
        "--islands",
        type=int,
        metavar="K",
        help=f"populations in a ring (default: {ISLANDS}; with models one for every {CANDIDATES_AN_ISLAND} candidates, "
        f"at most {ISLANDS})",
    )
    run.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="evaluations at once (default: as the CPUs and GPUs take); 1: repeatable",
    )
    common.add_devices(run)
    common.add_baseline(run)
    common.add_full(run)
    run.add_argument(
        "--screen-budget",
        type=int,
        metavar="N",
        help="most estimates an operator may choose a draft by (default: 12; 0 if a GPU measures)",
    )
    _add_models(run)
    _add_halves(run)
    # What was not given is None: for a run that exists, a default would be another value than the run's.
    run.set_defaults(command=_run, **dict.fromkeys(_SETTINGS))


def _add_models(run: argparse.ArgumentParser) -> None:
    group = common.add_models(
        run,
        concurrency=f"questions in flight (default: {DEFAULT_CONCURRENCY}; 1 with --workers 1, which is repeatable)",
    )
    group.add_argument("--max-tokens", type=int, metavar="N", help="hard limit on tokens, of prompts and answers")
    group.add_argument("--max-usd", type=float, metavar="X", help="hard limit on dollars; needs prices")


def _add_halves(run: argparse.ArgumentParser) -> None:
    half = run.add_mutually_exclusive_group()
    half.add_argument(
        "--propose-only", type=int, metavar="N", help="store N candidates in --run-dir, new or not, evaluate none"
    )
    half.add_argument(
        "--evaluate-only", action="store_true", help="evaluate what is pending in --run-dir, propose nothing"
    )


def _run(arguments: argparse.Namespace) -> int:
    from evo import api

    settings = _settings(arguments)
    if arguments.propose_only is not None:
        return _propose(arguments, settings)
    if arguments.evaluate_only:
        return _evaluate(arguments, settings)
    task = DEFAULT_TASK if arguments.task is None else arguments.task
    return show_end(api.search(task, run_dir=arguments.run_dir, progress=CommandLine(), **settings))


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings that were given: a run that exists has all others already."""
    given: Any = {
        setting: value for option, setting in _SETTINGS.items() if (value := getattr(arguments, option)) is not None
    }
    if "operators" in given:
        given["operators"] = [name.strip() for name in given["operators"].split(",")]
    settings: Settings = given
    return settings


def _propose(arguments: argparse.Namespace, settings: Settings) -> int:
    """`settings`: those that were given."""
    from evo import api

    folder = _folder(arguments, "--propose-only N")
    outcome = api.propose(folder, arguments.propose_only, arguments.task, progress=CommandLine(), **settings)
    if outcome.reason is StopReason.SILENT and not outcome.proposed:
        return common.EXIT_NOT_OK
    return common.EXIT_INTERRUPTED if outcome.reason is StopReason.INTERRUPTED else 0


def _evaluate(arguments: argparse.Namespace, settings: Settings) -> int:
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
