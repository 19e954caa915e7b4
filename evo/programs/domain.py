"""Describes the calls at which a kernel was verified, for the guard of a package (`evo/programs/guard.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evo.core.errors import ConfigError
from evo.core.records import Case
from evo.programs.guard import Part, part_of
from evo.programs.origin import FUNCTION, KERNEL, Origin

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.tasks.task import Task


def verified_cases(task: Task, measured: bool) -> list[Case]:
    """Returns the cases at the sizes at which kernels were executed.

    measured: a GPU executed all cases at their sizes on the target.  Without one the interpreter executed them at their
    sizes for a CPU, and at the sizes on the target the programs that store some elements.
    """
    return [*task.cases] if measured else [*task.cases, *(case.on_cpu() for case in task.cases)]


def parts_of(task: Task, case: Case) -> tuple[Part, ...]:
    """Returns what is compared of each argument of a case."""
    from fitness.tasks.calls import Calls

    return tuple(map(part_of, Calls(task).arguments(case)))


def domain_of(
    task: Task, origin: Origin, parameters: Sequence[str], function: str, target: Target, triton: str, measured: bool
) -> dict[str, Any]:
    """Returns what domain.json holds.

    parameters: of the function of that name in the kernel file, which gets the task's inputs.
    Raises ConfigError if these are not parameters of what was captured.
    """
    calls = list(dict.fromkeys(parts_of(task, case) for case in verified_cases(task, measured)))
    names = list(parameters[: len(calls[0])])
    _check_names(origin, names)
    return {
        "version": 1,
        "function": function,
        "names": names,
        "calls": calls,
        "fixed": _fixed(origin, names) if origin.kind == KERNEL else {},
        "capability": list(divmod(target.arch, 10)),
        "triton": triton,
    }


def _check_names(origin: Origin, names: Sequence[str]) -> None:
    captured = {argument.name for call in origin.calls for argument in call.arguments}
    known = captured | ({"grid"} if origin.kind == KERNEL else set())
    if strange := [name for name in names if name not in known]:
        what = "function" if origin.kind == FUNCTION else "kernel"
        raise ConfigError(
            f"expected a task whose entry takes arguments of the {what} {origin.name} ({', '.join(sorted(captured))}), "
            f"got {', '.join(strange)}; make the task again by `evo tasks new --from`"
        )


def _fixed(origin: Origin, names: Sequence[str]) -> dict[str, list[Part]]:
    """Returns, for the arguments of a launch that the task's entry does not take, the values that they had."""
    found: dict[str, list[Part]] = {}
    for call in origin.calls:
        for argument in call.arguments:
            if argument.name not in names and argument.tensor is None:
                value = tuple(argument.value) if isinstance(argument.value, list) else argument.value
                found.setdefault(argument.name, []).append(part_of(value))
        if call.grid is not None and "grid" not in names:
            found.setdefault("grid", []).append(part_of((*call.grid, 1, 1)[:3]))
    return {name: list(dict.fromkeys(parts)) for name, parts in found.items()}
