"""Writes a task that was made in Python as a folder, since the GPU runner and the workers of a cluster load folders.

The functions of the task are copied as source text.  What they use from outside must be something a new file can have
too: a module or name of an installed package, another function of the same kind, or a plain constant.  The folder is
named by the hash of what is in it, so the same task has the same folder and no task overwrites another.
"""

from __future__ import annotations

import ast
import dis
import inspect
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core import syntax
from evo.core.errors import TaskError
from evo.core.records import Case

if TYPE_CHECKING:
    from fitness.tasks.task import Task

_HOW = "or write a task folder by `evo tasks new DIR KERNEL.py`"
_PLAIN = "a module, a function, a torch.dtype, or a constant of numbers, texts, tuples, lists and dicts"
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


class _TaskWriter:
    """Collects what task.py has to say: imports, constants and functions, each name once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._taken: dict[str, object] = {}  # what a name stands for in task.py
        self._imports: list[str] = []
        self._constants: list[str] = []
        self._functions: list[str] = []

    def text(self) -> str:
        given = {name: getattr(self._task, name) for name in FUNCTIONS}
        functions = {name: value for name, value in given.items() if value is not None}
        options = _options(self._task)
        self._taken = {"Case": Case, **dict.fromkeys((*FUNCTIONS, *_SETTINGS), _RESERVED), **functions}
        names = {name: self._function(name, function) for name, function in functions.items()}
        renamed = [f"{name} = {own}" for name, own in names.items() if own != name]
        settings = [f"{name} = {_literal(name, value)}" for name, value in options.items()]
        if self._task.reference is None:
            settings.append('reference = "seed"')
        imports = sorted({*self._imports, "from fitness import Case"})
        blocks = ["\n".join(imports), "\n".join([*settings, *self._constants]), *self._functions, "\n".join(renamed)]
        return _HEAD + "\n" + "\n\n\n".join(block for block in blocks if block) + "\n"

    def _function(self, label: str, given: Any) -> str:
        """Copies a function with all it uses; its name in task.py.  `label`: what the user calls it."""
        function = inspect.unwrap(given) if callable(given) else given
        if not isinstance(function, types.FunctionType):
            raise TaskError(f"{label}: expected a function, got {given!r:.100}; give it as `def`, {_HOW}")
        source, node = _source(label, function)
        own = node.name
        self._take(own, given, label)
        if source in self._functions:
            return own
        self._functions.append(source)
        for name in sorted(_outer_names(function, node)):
            if name in function.__globals__:
                self._global(name, function.__globals__[name], label)
        return own

    def _global(self, name: str, value: Any, label: str) -> None:
        if name in self._taken and self._taken[name] is value:
            return
        if isinstance(value, types.FunctionType) and not _installed(value.__module__):
            own = self._function(f"{name}, which {label} uses,", value)
            if own != name:
                self._take(name, value, label)
                self._constants.append(f"{name} = {own}")
            return
        self._take(name, value, label)
        if isinstance(value, types.ModuleType):
            if not _installed(value.__name__):
                raise _uncopied(label, name, f"the module {value.__name__}, which is no part of an installed package")
            self._imports.append(f"import {value.__name__}" + f" as {name}" * (name != value.__name__))
        elif where := _importable(value):
            self._imports.append(f"from {where[0]} import {where[1]}" + f" as {name}" * (name != where[1]))
        elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
            self._imports.append(f"from torch import {str(value).removeprefix('torch.')} as {name}")
        else:
            self._constants.append(f"{name} = {_literal(name, value, label)}")

    def _take(self, name: str, value: object, label: str) -> None:
        if name in self._taken and self._taken[name] is not value:
            raise TaskError(
                f"{label}: expected the name {name} to stand for one thing in the task, got two; rename one of them"
            )
        self._taken[name] = value


def _options(task: Task) -> dict[str, Any]:
    """What the task says beside its functions; only what differs from the defaults, the required aside."""
    defaults = type(task).__dataclass_fields__
    values = {name: getattr(task, name) for name in _SETTINGS}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return {name: value for name, value in values.items() if value != defaults[name].default}


def _source(label: str, function: types.FunctionType) -> tuple[str, ast.FunctionDef]:
    """The text of a function and its syntax tree.  Raises TaskError if it cannot stand on its own."""
    if function.__name__ == "<lambda>":
        raise TaskError(f"{label}: expected a function with a name, got a lambda; write it as `def`, {_HOW}")
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise TaskError(
            f"{label}: expected a function that stands on its own, got one that uses {names} of the function around "
            f"it; move it to the top level of its file, {_HOW}"
        )
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise TaskError(
            f"{label}: expected a function whose source can be read, got: {error}; define it in a file or in a cell of "
            f"a notebook, {_HOW}"
        ) from error
    try:
        (node,) = syntax.parse(text).body
    except (SyntaxError, ValueError):
        node = None
    if not isinstance(node, ast.FunctionDef):
        raise TaskError(f"{label}: expected a `def` on lines of its own, got {text.strip()!r:.80}; {_HOW}")
    return text.rstrip(), node


def _outer_names(function: types.FunctionType, node: ast.FunctionDef) -> set[str]:
    """Names that a function reads from its module: in its body, its default values and its decorators."""
    around = (*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d is not None))
    names = {n.id for part in around for n in ast.walk(part) if isinstance(n, ast.Name)}
    return names | set(_global_names(function.__code__))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name under which a class or function of an installed package can be imported; else None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name or not _installed(module):
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _installed(module: str) -> bool:
    """Whether a module is of Python, of an installed package or of evo, and so the same in every process."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("evo", "operators", "fitness"):
        return True
    found = sys.modules.get(top)
    file = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    if found is None or file is None:
        return False
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    path = Path(file).resolve()
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(p in path.parents for p in places)


def _literal(name: str, value: Any, label: str = "") -> str:
    """`value` as Python source."""
    if isinstance(value, Case):
        return _case(value)
    if isinstance(value, tuple) and value and all(isinstance(item, Case) for item in value):
        return "(\n" + "".join(f"    {_case(case)},\n" for case in value) + ")"
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        same = False
    if not same:
        raise _uncopied(label, name, f"{type(value).__name__} {text:.60}")
    return text


def _case(case: Case) -> str:
    cpu = "" if case.cpu_axes is None else f", cpu_axes={dict(case.cpu_axes)!r}"
    return f"Case({case.name!r}, {dict(case.axes)!r}, dtype={case.dtype!r}, role={case.role!r}{cpu})"


def _uncopied(label: str, name: str, what: str) -> TaskError:
    where = f"{label} uses {name}" if label else name
    return TaskError(f"{where}: expected {_PLAIN}, got {what}; make it inside the function, {_HOW}")
