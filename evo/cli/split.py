"""Runs half of a search: `evo run --propose-only` evaluates nothing, `evo run --evaluate-only` proposes nothing.

Both work alternately on one run folder, which may be copied between machines.  Proposing needs no GPU and starts no
evaluator; evaluating needs no network.  The first evaluation decides which device the run uses.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from evo.cli import common, models
from evo.cli.search import conclude, run_engine
from evo.core.errors import ConfigError
from evo.core.records import GPU_FACTS
from evo.core.text import quoted

if TYPE_CHECKING:
    from evo.core.records import Evaluation
    from evo.core.settings import RunConfig
    from evo.search.engine import Evaluator
    from evo.storage.store import RunInfo, Store
    from fitness.tasks.task import Task

# Settings of RunConfig that may differ each time, or are checked elsewhere.
_FREE = ("task", "budget", "workers", "device", "gpus", "ray_address")


def add_options(run: argparse.ArgumentParser) -> None:
    half = run.add_mutually_exclusive_group()
    half.add_argument(
        "--propose-only", type=int, metavar="N", help="store N candidates in --run-dir, new or not, evaluate none"
    )
    half.add_argument(
        "--evaluate-only", action="store_true", help="evaluate what is pending in --run-dir, propose nothing"
    )
    run.set_defaults(default_of=run.get_default)


def propose(arguments: argparse.Namespace, config: RunConfig) -> int:
    """`config`: as the arguments ask for it."""
    from evo.core.versions import own_versions
    from evo.search.termination import SILENT
    from evo.storage.store import FILE, RunInfo, Store

    folder, count = _folder(arguments, "--propose-only N"), arguments.propose_only
    if count < 1:
        raise ConfigError(f"--propose-only: expected a number from 1, got {count}")
    if (folder / FILE).exists():
        task, store, config, versions = _open(folder, arguments, config)
        models.check(config.models)
        store.goes_on(config, versions)
    else:
        models.check_unused(arguments, config.models)
        task = common.load_task(config.task)
        store = Store.create(folder, RunInfo(config, task.hash, own_versions(), {}))
    with store:
        outcome = run_engine(store, task, None, None, proposals=count)
        pending = len(store.pending())
        common.say(f"ended: {outcome.reason}; {outcome.proposed} candidates proposed, {pending} pending")
        models.say_failures(store)
        if pending:
            common.say(f"evaluate them: evo run --evaluate-only --run-dir {quoted(folder)}")
    if outcome.reason == SILENT and not outcome.proposed:
        return common.EXIT_NOT_OK
    return common.EXIT_INTERRUPTED if outcome.reason == "interrupted" else 0


def evaluate(arguments: argparse.Namespace, config: RunConfig) -> int:
    """`config`: as the arguments ask for it."""
    folder = _folder(arguments, "--evaluate-only")
    task, store, config, versions = _open(folder, arguments, config)
    with store:
        if not store.pending():
            check_devices(store, config, arguments)
            store.set_config(config)
            common.say(f"nothing is pending; propose more: evo run --propose-only N --run-dir {quoted(folder)}")
            return 0
        devices, config = find_devices(store, config, arguments)
        config = dataclasses.replace(config, workers=devices.workers(arguments.workers))
        devices.say()
        with closing(devices.open(task, config.target)) as evaluator:
            first = prepare(store, config, versions, evaluator)
            outcome = run_engine(store, task, first, evaluator, proposals=0)
            return conclude(store, outcome, evaluator)


def comparable_versions(info: RunInfo) -> dict[str, str]:
    """Returns the versions that a run of `info` must match here: all once it is evaluated, evo's own before."""
    from evo.core.versions import own_versions, versions

    return versions() if info.environment else {**info.versions, **own_versions()}


def with_budget(store: Store, config: RunConfig, budget: int | None) -> RunConfig:
    """`config` with another budget of candidates, None for the same.  Raises ConfigError if more is spent."""
    spent = store.spent()
    if budget is not None and budget < spent:
        raise ConfigError(
            f"budget: expected at least the {spent} candidates spent, got {budget}; give more than {spent} to go "
            f"further, or leave it out"
        )
    return config if budget is None else config.with_budget(budget)


def find_devices(store: Store, config: RunConfig, arguments: argparse.Namespace) -> tuple[common.Devices, RunConfig]:
    """Returns the devices for the run from now on, by --gpus and --ray-address, and its settings with them.

    The first evaluation decides whether times are measured or estimated, and that stays.
    """
    given = {name: value for name in ("gpus", "ray_address") if (value := getattr(arguments, name)) is not None}
    wanted = dataclasses.replace(config, **given)
    if store.info.environment:
        wanted.check_gpu_seconds(wanted.device)
        return common.find_devices(arguments.gpus, arguments.ray_address, config.target, config), wanted
    devices = common.find_devices(wanted.gpus, wanted.ray_address, config.target)
    return devices, wanted.with_device(devices.choice.device)


def check_devices(store: Store, config: RunConfig, arguments: argparse.Namespace) -> None:
    """Raises ConfigError for requested devices that are not available, if nothing is left to evaluate."""
    if arguments.gpus is not None or arguments.ray_address is not None:
        find_devices(store, config, arguments)
    if arguments.workers is not None:
        dataclasses.replace(config, workers=arguments.workers)


def prepare(store: Store, config: RunConfig, going: Mapping[str, str], evaluator: Evaluator) -> Evaluation:
    """Returns the evaluation of the seed.  All checks are passed: the run continues with `config` and versions `going`.

    The first evaluator of a run is noted in its store, but not its machine: prompts that were made before said what the
    target's name stands for, and those of one run say the same.
    """
    from evo.core.versions import versions

    first = evaluator.prepare()
    store.goes_on(config, going)
    if not store.info.environment:
        environment = {name: value for name, value in evaluator.environment.items() if name != GPU_FACTS}
        store.set_evaluator(versions(), environment)
    return first


def _folder(arguments: argparse.Namespace, option: str) -> Path:
    if arguments.run_dir is None:
        raise ConfigError(f"{option}: expected the folder of the run, got none; add --run-dir DIR")
    folder: Path = arguments.run_dir
    return folder


def _open(
    folder: Path, arguments: argparse.Namespace, wanted: RunConfig
) -> tuple[Task, Store, RunConfig, Mapping[str, str]]:
    """Returns the task and the store of the run in `folder`, its settings and versions, to run half of it."""
    from evo.storage.store import RunReader, Store

    with RunReader(folder) as run:
        info = run.info
    _check_same(folder, arguments, wanted, info.config)
    task = _load_task(folder, arguments, info)
    versions = comparable_versions(info)
    if arguments.propose_only is not None:
        from evo.core.versions import own_versions

        versions = {**info.versions, **own_versions()}
    store = Store.open(folder, task_hash=task.hash, versions=versions)
    budget = wanted.budget if arguments.budget != arguments.default_of("budget") else None
    try:
        return task, store, with_budget(store, store.info.config, budget), versions
    except BaseException:
        store.close()
        raise


def _check_same(folder: Path, arguments: argparse.Namespace, wanted: RunConfig, stored: RunConfig) -> None:
    """Raises ConfigError for a setting that was given and is not that of the run."""
    for name in (field.name for field in dataclasses.fields(stored)):
        given = getattr(arguments, name, None) != arguments.default_of(name)
        given |= name in ("models", "operators") and bool(arguments.model)
        old, new = getattr(stored, name), getattr(wanted, name)
        if given and name not in _FREE and old != new:
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option}: the run in {folder} was started with {old}, got {new}; leave it out, or start another run"
            )


def _load_task(folder: Path, arguments: argparse.Namespace, info: RunInfo) -> Task:
    """Returns the task of the run, from TASK if given: its folder may have another path on another machine."""
    stored = info.config.task
    if arguments.task is None and Path(stored).is_absolute() and not Path(stored).is_dir():
        raise ConfigError(
            f"the run in {folder} is of the task in {stored}, which is not on this machine; name its folder as TASK"
        )
    task = common.load_task(arguments.task or stored)
    if arguments.task is not None and task.hash != info.task_hash:
        raise ConfigError(
            f"TASK: the run in {folder} is of {stored}, and {arguments.task} is another task or was changed since; "
            f"restore it, or start another run"
        )
    return task
