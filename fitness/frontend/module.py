"""Loads the candidate as a Python module.  Only sandboxed jobs, which run its host code, may do that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from evo.core.records import Verdict
from fitness.frontend.kernels import EARLIER
from fitness.sandbox.jobs import CANDIDATE, JobError, line_of_error

MODULE = "candidate"


def compiled(source: str, scratch: Path) -> CodeType:
    """The code object of a source, which is also written to `scratch`.  Raises JobError(COMPILE_ERROR)."""
    file = scratch / CANDIDATE
    try:
        file.write_text(source, encoding="utf-8")
        return compile(source, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, lone surrogates
        raise JobError(Verdict.COMPILE_ERROR, f"not Python: {error}", line_of_error(error)) from error


def entry_of(code: CodeType, entry: str) -> Callable[..., Any]:
    """The function `entry` of a new module that `code` fills.  Raises JobError(COMPILE_ERROR)."""
    module = ModuleType(MODULE)
    module.__file__ = code.co_filename
    sys.modules[MODULE] = module
    try:
        exec(code, vars(module))
    except (JobError, MemoryError):
        raise
    except Exception as error:  # the candidate's top level may raise anything
        message = f"importing the candidate failed: {type(error).__name__}: {error}"
        raise JobError(Verdict.COMPILE_ERROR, message, line_of_error(error)) from error
    function = vars(module).get(entry)
    if not callable(function):
        raise JobError(Verdict.COMPILE_ERROR, f"expected a function {entry!r} at the top level, got {function!r}")
    return function  # type: ignore[no-any-return]


def written_among(arguments: Sequence[Any], written: Sequence[int]) -> list[torch.Tensor]:
    """The tensors among the arguments at the positions `written`, which the task declares as written."""
    return [arguments[i] for i in written if isinstance(arguments[i], torch.Tensor)]


def returned(result: Any) -> tuple[list[torch.Tensor], str]:
    """The tensors that an entry returned, in order, and their structure as in a plan.  Raises JobError(WRONG)."""
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


# --- modules of earlier versions of Triton ---------------------------------------------------------------------------

_MODEL = "matmul_perf_model"


def early_config_prune(configs: Sequence[Any], named_args: Any, **_: Any) -> list[Any]:
    """All configurations.  The original dropped some before they were measured."""
    return list(configs)


def estimate_matmul_time(*_: Any, **__: Any) -> float:
    """Milliseconds, the same for every configuration: so Triton keeps the first `top_k` of them."""
    return 0.0


@contextlib.contextmanager
def earlier_modules() -> Iterator[None]:
    """Lets host code import `triton.ops.matmul_perf_model`, which earlier versions of Triton had."""
    package, model = ModuleType(EARLIER), ModuleType(f"{EARLIER}.{_MODEL}")
    package.__path__ = []
    model.early_config_prune, model.estimate_matmul_time = early_config_prune, estimate_matmul_time  # type: ignore
    package.matmul_perf_model = model  # type: ignore[attr-defined]
    # Added and removed by name: restoring all of sys.modules would make each call import again what the last one did.
    added = {package.__name__: package, model.__name__: model}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
