"""`evo resume`: go on with a run that was stopped."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING, Any

from evo.budget import Budget
from evo.commands import models, parts
from evo.commands.search import conclude, search
from evo.commands.split import comparable_versions, find_devices, prepare
from evo.errors import ConfigError
from evo.folders import run_folder
from evo.plain import quoted

if TYPE_CHECKING:
    from evo.store import Store


def add(commands: Any) -> None:
    resume = commands.add_parser("resume", help="go on with a run that was stopped")
    resume.add_argument("folder", type=run_folder, metavar="DIR")
    resume.add_argument("--budget", type=int, metavar="N", help="candidates in total (default: as the run was started)")
    resume.add_argument("--gpu-seconds", type=float, metavar="X", help="another limit on GPU seconds, in total")
    resume.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="where a model of the run is to be asked now",
    )
    resume.add_argument("--max-tokens", type=int, metavar="N", help="another hard limit on tokens, in total")
    resume.add_argument("--max-usd", type=float, metavar="X", help="another hard limit on dollars, in total")
    resume.add_argument("--gpus", metavar="N|all", help="another number of GPUs (default: as the run was started)")
    resume.add_argument(
        "--ray-address", metavar="ADDRESS", help="another Ray cluster (default: as the run was started)"
    )
    resume.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="evaluations at once (default: as before, or as --gpus and --ray-address, where given, take)",
    )
    resume.set_defaults(command=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    from evo.store import RunReader, Store

    with RunReader(arguments.folder) as run:
        info = run.info
    models.check_limited(info.config.models, arguments.max_tokens, arguments.max_usd)
    task = parts.load_task(info.config.task)
    versions = comparable_versions(info)
    with Store.resume(arguments.folder, task_hash=task.hash, versions=versions) as store:
        spent = max(0, sum(store.verdicts().values()) - 1)
        if arguments.budget is not None:
            if arguments.budget < spent:
                raise ConfigError(f"budget: expected at least the {spent} candidates spent, got {arguments.budget}")
            store.set_config(info.config.with_budget(arguments.budget))
        names = ("max_tokens", "max_usd", "gpu_seconds")
        limits = {name: value for name in names if (value := getattr(arguments, name)) is not None}
        moved = models.moved(store.info.config.models, arguments.model)
        store.set_config(dataclasses.replace(store.info.config, models=moved, **limits))
        if _over(store) and not store.pending():
            option = "--budget N" if spent >= store.info.config.budget else "--gpu-seconds X"
            parts.say(
                f"all {spent} candidates are evaluated; `evo resume {quoted(arguments.folder)} {option}` goes further"
            )
            return conclude(store)
        parts.say(f"resuming {arguments.folder} at {spent} of {store.info.config.budget} candidates")
        devices = find_devices(store, arguments)
        store.set_config(
            dataclasses.replace(store.info.config, workers=_workers(arguments, devices, info.config.workers))
        )
        with closing(devices.open(task, info.config.target)) as evaluator:
            return search(store, task, prepare(store, evaluator), evaluator)


def _over(store: Store) -> bool:
    """Whether the run has spent its budget."""
    budget = Budget(store.info.config.budget, store.info.config.gpu_seconds)
    for trial in store.trials():
        budget.spend(trial)
    return budget.over


def _workers(arguments: argparse.Namespace, devices: parts.Devices, before: int) -> int:
    """A run with one worker is repeatable and stays so unless asked otherwise."""
    if arguments.workers is None and (before == 1 or (arguments.gpus is None and arguments.ray_address is None)):
        return before
    return devices.workers(arguments.workers)
