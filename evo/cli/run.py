"""`evo run`: searches for a faster kernel."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, models, split
from evo.cli.search import CommandLine, show_end

if TYPE_CHECKING:
    from evo.api import Settings

DEFAULT_TASK = "softmax"
DEFAULT_BUDGET = 32
# Settings of `evo.search` by the names of their options.
_SETTINGS = {
    **{name: name for name in ("budget", "seed", "strategy", "operators", "islands", "workers", "target", "gpus")},
    **{name: name for name in ("ray_address", "gpu_seconds", "screen_budget")},
    **{name: name for name in ("llm_concurrency", "max_tokens", "max_usd", "guidance")},
    "model": "models",
    "models": "models_file",
}


def add(commands: Any) -> None:
    run = commands.add_parser("run", help="search for a faster kernel")
    run.add_argument(
        "task", nargs="?", metavar="TASK", help=f"a built-in task or a task folder (default: {DEFAULT_TASK})"
    )
    run.add_argument(
        "--budget",
        type=int,
        default=DEFAULT_BUDGET,
        metavar="N",
        help=f"candidates to evaluate (default: {DEFAULT_BUDGET})",
    )
    run.add_argument("--gpu-seconds", type=float, metavar="X", help="the run ends when a GPU measured for so long, too")
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the run (default: runs/TASK-NUMBER)")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="of all randomness (default: 0)")
    run.add_argument(
        "--strategy",
        default="evolve",
        help="evolve (default), random or hillclimb; best-of-n and tritonforge ask models",
    )
    run.add_argument("--operators", metavar="A,B", help="names of operators (default: the strategy's)")
    run.add_argument("--islands", type=int, default=3, metavar="K", help="populations in a ring (default: 3)")
    run.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="evaluations at once (default: as the CPUs and GPUs take); 1: repeatable",
    )
    common.add_devices(run)
    run.add_argument(
        "--screen-budget",
        type=int,
        metavar="N",
        help="most estimates an operator may choose a draft by (default: 12; 4 if a GPU measures)",
    )
    models.add_options(run)
    split.add_options(run)
    run.set_defaults(command=_run, default_of=run.get_default)


def _run(arguments: argparse.Namespace) -> int:
    from evo import api

    settings = _settings(arguments)
    if arguments.propose_only is not None:
        return split.propose(arguments, settings)
    if arguments.evaluate_only:
        return split.evaluate(arguments, settings)
    task = DEFAULT_TASK if arguments.task is None else arguments.task
    return show_end(api.search(task, run_dir=arguments.run_dir, progress=CommandLine(), **settings))


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings that were given: a run that exists has all others already."""
    given: Any = {
        setting: getattr(arguments, option)
        for option, setting in _SETTINGS.items()
        if getattr(arguments, option) != arguments.default_of(option)
    }
    if "operators" in given:
        given["operators"] = [name.strip() for name in given["operators"].split(",")]
    settings: Settings = given
    return settings
