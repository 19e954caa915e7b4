"""`evo replay`: makes the decisions of a run again, from its store, and says whether they are the same."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, models
from evo.core.errors import StoreError
from evo.storage.folders import run_folder

if TYPE_CHECKING:
    from evo.storage.store import RunInfo
    from fitness.tasks.task import Task


def add(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="make a run's decisions again from its store, offline",
        description="Exit code 0: every question, proposal and reading of an answer is the same again; 1: not all are.",
    )
    replay.add_argument("folder", type=run_folder, metavar="DIR")
    replay.set_defaults(command=_replay)


def _task(info: RunInfo, folder: Path) -> Task:
    """Returns the task of the run.  Raises StoreError, and executes nothing, if it was changed."""
    from fitness.tasks.task import ChangedTaskError

    try:
        return common.load_task(info.config.task, info.task_hash)
    except ChangedTaskError:
        raise StoreError(f"cannot replay {folder}: task {info.config.task} has changed since; restore it") from None


def _replay(arguments: argparse.Namespace) -> int:
    from evo.search.replay import Redoing
    from evo.storage.store import RunReader
    from operators.registry import LLM_OPERATORS, get_operators

    with RunReader(arguments.folder) as run:
        config = run.info.config
        task = _task(run.info, arguments.folder)
        rules = [name for name in config.operators if "@" not in name]
        operators = {o.name: o for o in get_operators(rules)} if rules else {}
        context = models.prompt_context(run.info, task)
        redone = list(Redoing(run, operators, LLM_OPERATORS, context).decisions())
    differences = [r for r in redone if not r.same]
    for r in differences:
        common.say(r.difference())
    asked = sum(r.name.startswith("call") for r in redone)
    common.say(
        f"{asked} questions and {len(redone) - asked} proposals made again: "
        f"{f'{len(differences)} differ' if differences else 'all the same'}"
    )
    return common.EXIT_NOT_OK if differences else 0
