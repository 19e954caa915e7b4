"""`evo run`: searches for a faster kernel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, models, split
from evo.cli.search import search
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from evo.core.settings import RunConfig

DEFAULT_TASK = "softmax"
DEFAULT_BUDGET = 32
RUNS = Path("runs")  # run folders that were not named are made in it


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
    run.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from evo.core.versions import versions
    from evo.storage.store import RunInfo, Store, check_makeable, check_vacant

    config = _config(arguments)
    if arguments.propose_only is not None:
        return split.propose(arguments, config)
    if arguments.evaluate_only:
        return split.evaluate(arguments, config)
    models.check_unused(arguments, config.models)
    if arguments.run_dir is not None:
        check_vacant(arguments.run_dir)
    check_makeable(arguments.run_dir or RUNS)
    task = common.load_task(config.task)
    devices = common.find_devices(arguments.gpus, arguments.ray_address, config.target)
    devices.say()
    config = replace(config.with_device(devices.choice.device), workers=devices.workers(arguments.workers))
    if arguments.screen_budget is not None:
        config = replace(config, screen_budget=arguments.screen_budget)
    common.say(f"preparing {task.name}: evaluating its seed kernel")
    with closing(devices.open(task, config.target)) as evaluator:
        first = evaluator.prepare()
        folder = arguments.run_dir or _new_folder(task.name)
        info = RunInfo(config, task.hash, versions(), evaluator.environment)
        with Store.create(folder, info) as store:
            return search(store, task, first, evaluator)


def _config(arguments: argparse.Namespace) -> RunConfig:
    from evo.core.settings import REDRAFTS, RunConfig
    from evo.search.strategies import STRATEGIES
    from fitness.devices import check_address, check_gpus
    from fitness.frontend.target import get_target
    from fitness.tasks.task import task_names
    from operators.registry import check_beginning

    if arguments.strategy not in STRATEGIES:
        raise ConfigError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {arguments.strategy!r}")
    strategy = STRATEGIES[arguments.strategy]
    names: Sequence[str] = strategy.operators
    if arguments.operators is not None:
        names = [n.strip() for n in arguments.operators.split(",")]
    workers = common.workers(1 if strategy.path and arguments.workers is None else arguments.workers)
    get_target(arguments.target)
    check_gpus(arguments.gpus)
    check_address(arguments.ray_address)
    task = DEFAULT_TASK if arguments.task is None else arguments.task
    if not task:  # a path that is empty is the folder one is in
        raise ConfigError(f"TASK: expected a built-in task or a task folder, got ''; leave it out for {DEFAULT_TASK}")
    config = RunConfig(
        task=task if task in task_names() else str(Path(task).resolve()),
        budget=arguments.budget,
        seed=arguments.seed,
        strategy=arguments.strategy,
        islands=arguments.islands,
        workers=workers,
        target=arguments.target,
        **models.settings(arguments, names, workers),
        gpus=arguments.gpus,
        ray_address=arguments.ray_address,
        gpu_seconds=arguments.gpu_seconds,
        screen_budget=RunConfig.screen_budget if arguments.screen_budget is None else arguments.screen_budget,
        redrafts=REDRAFTS,
        frozen_parents=True,
        surrogate=True,
    )
    check_beginning(config.operators)
    return config


def _new_folder(task: str) -> Path:
    """runs/TASK-NNN with the first free number, made now so that two runs started at once do not meet."""
    number = 1
    while True:
        folder = RUNS / f"{task}-{number:03}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(f"expected to make {folder}, got: {error}; name another folder by --run-dir") from error
