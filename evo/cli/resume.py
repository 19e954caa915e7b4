"""`evo resume`: continues a run that was stopped."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING, Any

from evo.cli import common, models
from evo.cli.search import conclude, search
from evo.cli.split import check_devices, comparable_versions, find_devices, prepare, with_budget
from evo.core.text import quoted
from evo.search.termination import is_over
from evo.storage.folders import run_folder

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.storage.store import Store


def add(commands: Any) -> None:
    resume = commands.add_parser("resume", help="continue a run that was stopped")
    resume.add_argument("folder", type=run_folder, metavar="DIR")
    resume.add_argument("--budget", type=int, metavar="N", help="candidates in total (default: as the run was started)")
    resume.add_argument("--gpu-seconds", type=float, metavar="X", help="another limit on GPU seconds, in total")
    resume.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="the address at which a model of the run is asked from now on",
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
        help="evaluations at once (default: as before, or as many as --gpus and --ray-address, if given, allow)",
    )
    resume.set_defaults(command=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    from evo.storage.store import RunReader, Store

    with RunReader(arguments.folder) as run:
        info = run.info
    models.check_limited(
        info.config.models, arguments.max_tokens, arguments.max_usd, fix="leave it out, or start another run with one"
    )
    task = common.load_task(info.config.task)
    versions = comparable_versions(info)
    with Store.open(arguments.folder, task_hash=task.hash, versions=versions) as store:
        config = _config(arguments, store)
        spent = store.spent()
        if is_over(store, config) and not store.pending():
            check_devices(store, config, arguments)
            store.set_config(config)
            option = "--budget N" if spent >= config.budget else "--gpu-seconds X"
            common.say(
                f"all {spent} candidates are evaluated; `evo resume {quoted(arguments.folder)} {option}` goes further"
            )
            return conclude(store)
        models.check(config.models)
        devices, config = find_devices(store, config, arguments)
        config = dataclasses.replace(config, workers=_workers(arguments, devices, config.workers))
        common.say(f"resuming {arguments.folder} at {spent} of {config.budget} candidates")
        devices.say()
        with closing(devices.open(task, config.target)) as evaluator:
            return search(store, task, prepare(store, config, versions, evaluator), evaluator)


def _config(arguments: argparse.Namespace, store: Store) -> RunConfig:
    """The settings of the run as they are asked for, its devices aside; nothing is stored."""
    config = with_budget(store, store.info.config, arguments.budget)
    names = ("max_tokens", "max_usd", "gpu_seconds")
    limits = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    config = dataclasses.replace(config, models=models.moved(config.models, arguments.model), **limits)
    if store.info.environment:
        config.check_gpu_seconds(config.device)
    return config


def _workers(arguments: argparse.Namespace, devices: common.Devices, before: int) -> int:
    """A run with one worker is repeatable and stays so unless asked otherwise."""
    if arguments.workers is None and (before == 1 or (arguments.gpus is None and arguments.ray_address is None)):
        return before
    return devices.workers(arguments.workers)
