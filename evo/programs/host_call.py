"""Finds with which arguments a task calls the function, or launches the kernel, that was captured.

The entry of a task made of a capture is written by evo: it makes the captured call, with some arguments as parameters
(slots) and others written out.  Here the seed's entry is executed with a stand-in for the function or kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from evo.core.errors import ConfigError
from evo.programs.guard import grid_of
from evo.programs.origin import KERNEL, Origin
from operators.combine import definitions
from operators.source import code, parameters

if TYPE_CHECKING:
    from evo.core.records import Case
    from fitness.tasks.task import Task

GRID = "grid"  # the name of the grid among the arguments of a launch
FORM = "form"  # the first parameter of an entry for several forms of a launch
Slot = list[Any]  # see `slots_of`


def function_of(source: str, name: str) -> cst.FunctionDef:
    """Returns the function of that name at the top level of a kernel file.  Raises ConfigError without one."""
    found = [n for n in cst.parse_module(source).body if isinstance(n, cst.FunctionDef) and n.name.value == name]
    if not found:
        raise ConfigError(
            f"expected a function {name} in the kernel file, as in the program, got none; make the task again by "
            "`evo tasks new --from`"
        )
    return found[-1]


def arguments_of(task: Task, origin: Origin, case: Case) -> dict[str, Any]:
    """Returns the arguments of the captured function in a case, by parameter; tensors are fake.

    For a kernel, "grid" is the grid of its launch, as three numbers.  Raises ConfigError if the entry does not call it.
    """
    from fitness.tasks.calls import Calls

    given: Sequence[Any] = Calls(task).arguments(case)
    function = function_of(task.needed_seed, origin.last)
    if isinstance(function.params.star_arg, cst.Param) or function.params.star_kwarg is not None:
        raise ConfigError(f"expected a function {origin.name} with named parameters, got one with * or **")
    if task.entry == origin.last:
        return dict(zip(_names(function), given, strict=False))
    grid, found = _call(task, origin, given)
    return found if origin.kind != KERNEL else {**found, GRID: grid_of(grid)}


def _names(function: cst.FunctionDef) -> list[str]:
    return [p.name.value for p in parameters(function)]


class _Reached(Exception):
    """The stand-in for a function was called; what the entry does with its result does not matter."""


@dataclass
class _StandIn:
    """Stands for the captured function, or for its kernel.  calls: grid, arguments and keywords of each call."""

    kind: str
    calls: list[tuple[Any, Sequence[Any], dict[str, Any]]] = field(default_factory=list)
    grid: Any = None

    def __getitem__(self, grid: Any) -> _StandIn:
        self.grid = grid
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((self.grid, args, kwargs))
        if self.kind != KERNEL:
            raise _Reached


def _call(task: Task, origin: Origin, given: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the grid, and the arguments by parameter, of the one call that the entry makes; no launch options."""
    space: dict[str, Any] = {}
    for definition in definitions(cst.parse_module(task.needed_seed)):
        if definition.is_import:
            with suppress(ImportError):  # of the user's package, perhaps; the entry needs torch and Triton
                exec(definition.text, space)
    exec(code(function_of(task.needed_seed, task.entry)), space)
    space[origin.last] = stand_in = _StandIn(origin.kind)
    try:
        with suppress(_Reached):
            space[task.entry](*given)
    except Exception as error:
        raise ConfigError(
            f"expected an entry of {task.name} that calls {origin.last} alone, got {type(error).__name__}: {error}; "
            "make the task again by `evo tasks new --from`"
        ) from error
    if len(stand_in.calls) != 1:
        raise ConfigError(
            f"expected an entry of {task.name} that calls {origin.last} once, got one that does {len(stand_in.calls)} "
            "times; make the task again by `evo tasks new --from`"
        )
    ((grid, args, kwargs),) = stand_in.calls
    names = _names(function_of(task.needed_seed, origin.last))
    found = {**dict(zip(names, args, strict=False)), **kwargs}
    return grid, {name: value for name, value in found.items() if origin.kind != KERNEL or name in names}


def slots_of(task: Task, origin: Origin, case: Case) -> list[Slot]:
    """Returns what each parameter of the entry gets in the launch of a case.

    ["argument", name]: that argument of the launch; ["grid", axis]: a size of its grid; ["value", value]: the number of
    the form of launch, and None for what the entry takes for other forms.
    Raises ConfigError if the entry computes an argument.
    """
    from fitness.tasks.calls import Calls

    given: Sequence[Any] = Calls(task).arguments(case)
    slots = _names(function_of(task.needed_seed, task.entry))
    marks = [given[0] if slots[0] == FORM else object(), *(object() for _ in slots[1:])]
    grid, arguments = _call(task, origin, marks)
    where: dict[int, Slot] = {id(mark): ["grid", axis] for axis, mark in enumerate(grid)}
    where |= {id(mark): ["argument", name] for name, mark in arguments.items()}
    found = [where.get(id(mark), ["value", value]) for mark, value in zip(marks, given, strict=True)]
    lost = [name for name, (kind, value) in zip(slots, found, strict=True) if kind == "value" and value is not None]
    if strange := [name for name in lost if name != FORM]:
        raise ConfigError(
            f"expected an entry of {task.name} that passes {', '.join(strange)} to {origin.last} as it is; make the "
            "task again by `evo tasks new --from`"
        )
    return found
