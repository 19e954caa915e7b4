"""Describes the calls at which a kernel was verified, for the guard of a package (`evo/programs/guard.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evo.core.errors import ConfigError
from evo.core.records import Case
from evo.programs.guard import Part, part_of, parts_of
from evo.programs.host_call import arguments_of, slots_of
from evo.programs.origin import KERNEL, Origin, OriginCall

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.tasks.task import Task

VERSION = 2  # of domain.json


def verified_cases(task: Task, measured: bool) -> list[Case]:
    """Returns the cases at the sizes at which kernels were executed.

    measured: a GPU executed all cases at their sizes on the target.  Without one the interpreter executed them at their
    sizes for a CPU, and at the sizes on the target the programs that store some elements.
    """
    return [*task.cases] if measured else [*task.cases, *(case.on_cpu() for case in task.cases)]


def domain_of(task: Task, origin: Origin, target: Target, triton: str, measured: bool) -> dict[str, Any]:
    """Returns what domain.json holds.

    "names" of the arguments; "function" of kernel.py that runs; "calls": [{"arguments": parts, "result": structure or
    None, "slots": what the parameters of the function get of a launch (`host_call.slots_of`), None for a function}].
    Raises ConfigError if the task does not call what was captured in one way.
    """
    kernel = origin.kind == KERNEL
    cases = verified_cases(task, measured)
    calls = [arguments_of(task, origin, case) for case in cases]
    names = list(calls[0])
    if strange := next((call for call in calls if list(call) != names), None):
        raise ConfigError(f"expected calls of {origin.name} with the same arguments, got {names} and {list(strange)}")
    found: dict[tuple[Part, ...], dict[str, Any]] = {}
    noted = any(captured.result is not None for captured in origin.calls)
    for case, call in zip(cases, calls, strict=True):
        result = _result(origin, call)
        if result is not None or not noted:  # else what else the original returns there is not known
            slots = slots_of(task, origin, case) if kernel else None
            found.setdefault(parts_of(list(call.values())), {"result": result, "slots": slots})
    if not found:
        raise ConfigError(f"expected a case that is a captured call of {origin.name}, got none; make the task again")
    return {
        "version": VERSION,
        "function": task.entry if kernel else origin.last,
        "names": names,
        "calls": [{"arguments": parts, **call} for parts, call in found.items()],
        "capability": list(divmod(target.arch, 10)),
        "triton": triton,
    }


def _result(origin: Origin, call: Mapping[str, Any]) -> Any:
    """Returns the structure of what the original returned for these arguments; None if that was not captured."""
    return next((captured.result for captured in origin.calls if _is_of(captured, call)), None)


def _is_of(captured: OriginCall, call: Mapping[str, Any]) -> bool:
    for argument in captured.arguments:
        if argument.alias or argument.name not in call:
            continue
        form = argument.tensor
        part = part_of(argument.value) if form is None else (form.dtype, form.shape, form.stride)
        if part_of(call[argument.name]) != part:
            return False
    return True
