"""Runs a task's own code in this process: its prints go to stderr, and its errors become TaskErrors."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.core.errors import TaskError

_MODULE_NUMBERS = itertools.count()


def execute(path: Path, source: str) -> dict[str, Any]:
    """The names that task.py defines.  Its module has a unique name and is not in sys.modules afterwards."""
    module = types.ModuleType(f"evo_task_{next(_MODULE_NUMBERS)}")
    module.__file__ = str(path)
    module.__dict__["print"] = _print_aside  # The command may write JSON to stdout.
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise TaskError(f"{path}, line {error.lineno}: not Python: {error.msg}") from error
    except ValueError as error:  # Null bytes, before Python 3.12.
        raise TaskError(f"{path}: not Python: {error}") from error
    sys.modules[module.__name__] = module  # Classes look up their module while it is executed, e.g. dataclasses.
    try:
        with blamed(path, f"{path} cannot be executed:"):
            exec(code, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


@contextmanager
def blamed(path: Path, what: str, hint: str = "") -> Iterator[None]:
    """Turns whatever the code of the task.py at `path` raises inside into a TaskError: `what`, the error, `hint`."""
    try:
        yield
    except (Exception, SystemExit) as error:  # The user's code may raise anything, and call sys.exit.
        raise TaskError(f"{what} {_describe(error, path)}{hint}{_of_import(error, path.parent)}") from error


def _describe(error: BaseException, path: Path) -> str:
    """Type, message and the line in task.py of an exception."""
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    place = f" (task.py, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def _of_import(error: BaseException, folder: Path) -> str:
    """What to do if the import of a file beside task.py failed; "" for other errors.

    A task is task.py and kernel.py alone: its hash covers no other file.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if not name or not ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
        return ""
    seed = ', or let the seed kernel be the reference by reference = "seed"' if name == "kernel" else ""
    return f"; files beside task.py cannot be imported: put what it needs of {name} into task.py{seed}"


def _print_aside(*values: object, **options: Any) -> None:
    options.setdefault("file", sys.stderr)
    print(*values, **options)
