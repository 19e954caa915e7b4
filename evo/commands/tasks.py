"""`evo tasks`: list the built-in tasks, or start a new one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evo.commands import models, parts, task_by_model
from evo.errors import ConfigError
from evo.plain import quoted


def add(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="list the built-in tasks, or start a new one")
    tasks.set_defaults(command=_tasks)
    subcommands = tasks.add_subparsers(metavar="COMMAND")
    subcommands.add_parser("list", help="list the built-in tasks (so does `evo tasks`)")
    new = subcommands.add_parser(
        "new",
        help="make a task folder from a kernel",
        description="Writes DIR/kernel.py and DIR/task.py, with EDIT where you have to decide; or has a model write "
        "task.py, validates it and freezes it (docs/llm.md). Exit code 0: done; 1: no answer of the model could be "
        "used; 2: misuse.",
    )
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("kernel", type=Path, metavar="KERNEL.py")
    task_by_model.add_options(new)
    new.set_defaults(command=_new_task)


def _tasks(arguments: argparse.Namespace) -> int:
    from fitness.task import task_names, task_title

    for name in task_names():
        parts.say(f"{name}: {task_title(name)}")
        for case in parts.load_task(name).cases:
            axes = ", ".join(f"{axis}={size}" for axis, size in case.axes.items())
            parts.say(f"    {case.name} ({case.role}): {axes}, {case.dtype}")
    return 0


def _new_task(arguments: argparse.Namespace) -> int:
    from fitness.skeleton import parse_kernel

    source = parts.read_kernel(arguments.kernel)
    parse_kernel(source, str(arguments.kernel))  # what is no Python is said of this file
    folder: Path = arguments.folder
    taken = [name for name in task_by_model.NAMES if (folder / name).exists()]
    if taken:
        raise ConfigError(f"expected a new folder, but {folder} has {' and '.join(taken)}; choose another")
    if arguments.model is not None:
        return task_by_model.make(arguments, source)
    models.check_limited((), arguments.max_tokens, arguments.max_usd)
    from fitness.skeleton import entries
    from fitness.task import task_names, task_skeleton

    task_by_model.write(folder, {"task.py": task_skeleton(source), "kernel.py": source})
    entry, *others = (function.name for function in entries(source))
    beside = f" (others that launch: {', '.join(others)}; change entry in task.py for one of them)" if others else ""
    parts.say(f"wrote {folder / 'task.py'} and {folder / 'kernel.py'}; the entry is {entry}{beside}")
    parts.say("mend what is marked EDIT in task.py, then")
    parts.say(f"evo run {'./' if str(folder) in task_names() else ''}{quoted(folder)}")
    return 0
