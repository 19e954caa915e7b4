"""Finds with which arguments a task calls the function, or launches the kernel, that was captured.

The entry of a task made of a capture is written by evo: it makes the captured call, with some arguments as parameters
(slots) and others written out.  Here the seed's entry is executed with a stand-in for the function or kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import libcst as cst

from evo.core.errors import ConfigError
from evo.programs.guard import grid_of
from evo.programs.origin import KERNEL, Origin
from operators.combine import definitions
from operators.source import code, dotted, parameters, walk

if TYPE_CHECKING:
    from evo.core.records import Case
    from fitness.tasks.task import Task

GRID = "grid"  # the name of the grid among the arguments of a launch


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
    names: list[str] = [p.name.value for p in parameters(function)]
    if task.entry == origin.last:
        return dict(zip(names, given, strict=False))
    reached = _call(task, origin, given)
    found: dict[str, Any] = {**dict(zip(names, reached.given, strict=False)), **reached.kwargs}
    if origin.kind != KERNEL:
        return found
    return {**{name: value for name, value in found.items() if name in names}, GRID: grid_of(reached.grid)}


class _Reached(Exception):
    """The stand-in was called."""

    def __init__(self, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.grid, self.given, self.kwargs = grid, args, kwargs


class _PlainLaunch:
    """Stands for the captured function, or for its kernel."""

    grid: Any = None

    def __getitem__(self, grid: Any) -> _PlainLaunch:
        self.grid = grid
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _Reached(self.grid, args, kwargs)


def _call(task: Task, origin: Origin, given: Sequence[Any]) -> _Reached:
    space: dict[str, Any] = {}
    for definition in definitions(cst.parse_module(task.needed_seed)):
        if definition.is_import:
            with suppress(ImportError):  # of the user's package, perhaps; the entry needs torch and Triton
                exec(definition.text, space)
    exec(code(function_of(task.needed_seed, task.entry)), space)
    space[origin.last] = _PlainLaunch()
    try:
        space[task.entry](*given)
    except _Reached as reached:
        return reached
    except Exception as error:
        raise ConfigError(
            f"expected an entry of {task.name} that calls {origin.last} alone, got {type(error).__name__}: {error}; "
            "make the task again by `evo tasks new --from`"
        ) from error
    raise ConfigError(f"expected an entry of {task.name} that calls {origin.last}, got one that does not")


def slots_of(task: Task, origin: Origin) -> list[list[Any]]:
    """Returns for each parameter of a launch's entry which argument of the launch it gets: [name] or ["grid", axis].

    Raises ConfigError if the entry makes launches of several forms, or computes an argument.
    """
    entry = function_of(task.needed_seed, task.entry)
    launches = [
        n
        for n in walk(entry.body)
        if isinstance(n, cst.Call) and isinstance(n.func, cst.Subscript) and dotted(n.func.value) == origin.last
    ]
    if len(launches) != 1:
        raise ConfigError(
            f"expected one form of launch of {origin.name} in its task, got {len(launches)}; make a task of fewer calls"
        )
    (launch,) = launches
    names = [p.name.value for p in parameters(function_of(task.needed_seed, origin.last))]
    where: dict[str, list[Any]] = {}
    position = 0
    for argument in launch.args:
        name = names[position] if argument.keyword is None else argument.keyword.value
        position += argument.keyword is None
        where.setdefault(dotted(argument.value), [name])
    assert isinstance(launch.func, cst.Subscript)
    for axis, size in enumerate(_grid(launch.func)):
        where.setdefault(dotted(size), [GRID, axis])
    slots = [p.name.value for p in parameters(entry)]
    if lost := [slot for slot in slots if slot not in where]:
        raise ConfigError(f"expected an entry of {task.name} that passes {', '.join(lost)} to {origin.last} as it is")
    return [where[slot] for slot in slots]


def _grid(launched: cst.Subscript) -> list[cst.BaseExpression]:
    values = [s.slice.value for s in launched.slice if isinstance(s.slice, cst.Index)]
    if len(values) == 1 and isinstance(values[0], cst.Tuple):
        return [element.value for element in values[0].elements]
    return values
