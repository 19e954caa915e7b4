"""`evo tasks`: list the built-in tasks, or start a new one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evo.commands import parts
from evo.errors import ConfigError


def add(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="list the built-in tasks, or start a new one")
    tasks.set_defaults(command=_tasks)
    new = tasks.add_subparsers(metavar="COMMAND").add_parser("new", help="make a task folder from a kernel")
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("kernel", type=Path, metavar="KERNEL.py")
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
    from fitness.task import task_skeleton

    source = parts.read_kernel(arguments.kernel)
    folder: Path = arguments.folder
    texts = {"task.py": task_skeleton(source), "kernel.py": source}
    taken = [name for name in texts if (folder / name).exists()]
    if taken:
        raise ConfigError(f"expected a new folder, but {folder} has {' and '.join(taken)}; choose another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"expected to write to {folder}, got: {error}; choose another folder") from error
    parts.say(f"wrote {folder / 'task.py'} and {folder / 'kernel.py'}; mend what is marked EDIT in task.py, then")
    parts.say(f"evo run {folder}")
    return 0
