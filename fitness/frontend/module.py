"""The candidate as a Python module: for the sandboxed jobs that run its host code, and for nobody else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from evo.core.records import Verdict
from fitness.sandbox.jobs import CANDIDATE, JobError, line_of_error

MODULE = "candidate"


def compiled(source: str, scratch: Path) -> CodeType:
    """The code of a source, which is left in `scratch` for those who read it.  Raises JobError(COMPILE_ERROR)."""
    file = scratch / CANDIDATE
    try:
        file.write_text(source, encoding="utf-8")
        return compile(source, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, lone surrogates
        raise JobError(Verdict.COMPILE_ERROR, f"not Python: {error}", line_of_error(error)) from error


def entry_of(code: CodeType, entry: str) -> Callable[..., Any]:
    """The entry of a fresh module.  Raises JobError(COMPILE_ERROR)."""
    module = ModuleType(MODULE)
    module.__file__ = code.co_filename
    sys.modules[MODULE] = module
    try:
        exec(code, vars(module))
    except (JobError, MemoryError):
        raise
    except Exception as error:  # a process boundary of its own: any exception of the candidate's top level
        message = f"importing the candidate failed: {type(error).__name__}: {error}"
        raise JobError(Verdict.COMPILE_ERROR, message, line_of_error(error)) from error
    function = vars(module).get(entry)
    if not callable(function):
        raise JobError(Verdict.COMPILE_ERROR, f"expected a function {entry!r} at the top level, got {function!r}")
    return function  # type: ignore[no-any-return]


def written_among(arguments: Sequence[Any], written: Sequence[int]) -> list[torch.Tensor]:
    """Those of the arguments that the task says are written, where a call has a tensor there."""
    return [arguments[i] for i in written if isinstance(arguments[i], torch.Tensor)]


def returned(result: Any) -> tuple[list[torch.Tensor], str]:
    """The tensors an entry returned, in order, and how: the structure of a plan.  Raises JobError(WRONG)."""
    if result is None:
        return [], "none"
    if isinstance(result, torch.Tensor):
        items, structure = [result], "tensor"
    elif isinstance(result, (tuple, list)):
        items, structure = list(result), "tuple" if isinstance(result, tuple) else "list"
    elif isinstance(result, dict) and all(isinstance(k, str) and "," not in k for k in result):
        items, structure = list(result.values()), "dict:" + ",".join(result)
    else:
        raise JobError(Verdict.WRONG, f"returned {type(result).__name__}, expected tensors")
    for item in items:
        if not isinstance(item, torch.Tensor):
            message = f"returned a {structure} with a {type(item).__name__} in it, expected tensors"
            raise JobError(Verdict.WRONG, message)
    return items, structure
