"""Writes a task that was made in Python as a folder, since the GPU runner and the workers of a cluster load folders.

The functions of the task are copied as source text.  What they use from outside must be something a new file can have
too: a module or name of an installed package, another function of the same kind, or a plain constant.  The folder is
named by the hash of what is in it, so the same task has the same folder and no task overwrites another.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core.errors import TaskError
from evo.core.records import Case
from fitness.tasks.cut import SourceWriter
from fitness.tasks.installed import is_installed

if TYPE_CHECKING:
    from fitness.tasks.task import Task

_HOW = "or write a task folder by `evo tasks new DIR KERNEL.py`"
# Of a task, those that are functions, and the others; no name that a function uses may be one of these.
FUNCTIONS = ("inputs", "reference", "flops", "bytes", "baseline")
_SETTINGS = (
    "entry",
    "cases",
    "writes",
    "tolerance",
    "stress",
    "deterministic",
    "allow_delegation",
    "min_own_share",
    "certify",
    "lenient",
)
_HEAD = '"""Written by evo from a task that was made in Python."""\n\nfrom __future__ import annotations\n'


def load_written(task: Task) -> Task:
    """`task`, loaded from the folder that is written for it.  Raises TaskError saying what is wrong with it."""
    from fitness.tasks.task import load_task

    folder = write_task(task)
    return load_task(folder, expected=_hash(task))


def write_task(task: Task) -> Path:
    """The folder of `task` in evo/tasks of the user's cache (XDG_CACHE_HOME, ~/.cache), written unless it is there.

    Raises TaskError if the source of a function cannot be had or copied, or the folder cannot be written.
    """
    for name in ("entry", "seed_source", "name"):
        if not isinstance(getattr(task, name), str) and (name, getattr(task, name)) != ("seed_source", None):
            raise TaskError(f"evo.Task: expected {name} to be a text, got {getattr(task, name)!r:.100}")
    for name in ("cases", "certify"):
        cases = getattr(task, name)
        if not isinstance(cases, (list, tuple)) or not all(isinstance(case, Case) for case in cases):
            raise TaskError(f"evo.Task: expected {name} to be a list of evo.Case, got {cases!r:.100}")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", task.name):
        raise TaskError(f"task {task.name!r}: expected a name of letters, digits, '.', '_' and '-'; give name=...")
    texts = {"task.py": task_source(task)} | ({} if task.seed_source is None else {"kernel.py": task.seed_source})
    folder = _cache() / _hash(task)[:16] / task.name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, text in texts.items():
            (new / name).write_text(text, encoding="utf-8")
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
            if not folder.is_dir():  # else another process wrote the same
                raise
    except OSError as error:
        raise TaskError(f"expected to write the task to {folder}, got: {error}; set XDG_CACHE_HOME") from error
    return folder


def _hash(task: Task) -> str:
    from fitness.tasks.task import hash_task

    return hash_task(task_source(task), task.seed_source)


def task_source(task: Task) -> str:
    """The text of task.py."""
    return _TaskWriter(task).text()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evo" / "tasks"


_RESERVED = object()  # what the name of an option that is not a function stands for


class _TaskWriter(SourceWriter):
    """Collects what task.py has to say.  It may import installed packages, which are the same in every process."""

    hint = f"make it inside the function, {_HOW}"

    def __init__(self, task: Task) -> None:
        self._task = task
        given = {name: getattr(task, name) for name in FUNCTIONS}
        self._given = {name: value for name, value in given.items() if value is not None}
        reserved = dict.fromkeys((*FUNCTIONS, *_SETTINGS), _RESERVED)
        super().__init__(is_installed, {"Case": Case, **reserved, **self._given})

    def text(self) -> str:
        names = {name: self.function(name, function) for name, function in self._given.items()}
        renamed = [f"{name} = {own}" for name, own in names.items() if own != name]
        settings = [f"{name} = {self.literal(name, value)}" for name, value in _options(self._task).items()]
        if self._task.reference is None:
            settings.append('reference = "seed"')
        imports = sorted({*self.imports, "from fitness import Case"})
        blocks = ["\n".join(imports), "\n".join([*settings, *self.constants]), *self.functions, "\n".join(renamed)]
        return _HEAD + "\n" + "\n\n\n".join(block for block in blocks if block) + "\n"

    def literal(self, name: str, value: Any, label: str = "") -> str:
        if isinstance(value, Case):
            return _case(value)
        if isinstance(value, tuple) and value and all(isinstance(item, Case) for item in value):
            return "(\n" + "".join(f"    {_case(case)},\n" for case in value) + ")"
        return super().literal(name, value, label)


def _options(task: Task) -> dict[str, Any]:
    """What the task says beside its functions; only what differs from the defaults, the required aside."""
    defaults = type(task).__dataclass_fields__
    values = {name: getattr(task, name) for name in _SETTINGS}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return {name: value for name, value in values.items() if value != defaults[name].default}


def _case(case: Case) -> str:
    cpu = "" if case.cpu_axes is None else f", cpu_axes={dict(case.cpu_axes)!r}"
    weight = "" if case.weight == 1 else f", weight={case.weight!r}"
    return f"Case({case.name!r}, {dict(case.axes)!r}, dtype={case.dtype!r}, role={case.role!r}{cpu}{weight})"
