"""Host functions: the functions of a program around its launches.

The host function of a launch is the innermost function on the stack that

- is defined at the top level of a module, under its own name;
- names a Triton kernel in its body, or in a function inside it;
- takes at least one tensor, and otherwise numbers, texts, None, dtypes, devices, and tuples, lists or dicts of those.

The search for it ends at an autograd function: what replaces a function around that would lose its gradient.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from triton.runtime.jit import KernelInterface

Called = Callable[..., Any]  # called(host, function, args, kwargs) in place of a host function
_AUTOGRAD = "torch/autograd/function.py"


@functools.cache
def is_common(module: str) -> bool:
    """Returns whether a module has no host functions of a program: PyTorch's, Triton's, NumPy's, evo's, Python's."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    return top in ("torch", "triton", "numpy", "evo", "fitness") or top in sys.stdlib_module_names


def host_functions(module: ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    """Yields name and value of each function of a module that may be a host function.

    A decorated function is the value that the decorator returned.
    """
    space = vars(module)
    kernels = {name for name, value in space.items() if isinstance(value, KernelInterface)}
    modules = {n: v for n, v in space.items() if isinstance(v, ModuleType) and not is_common(v.__name__)}
    if not kernels and not modules:
        return
    for name, value in list(space.items()):
        function = inner_function(value) if isinstance(value, types.FunctionType) else None
        if (
            not isinstance(function, types.FunctionType)
            or function.__globals__ is not space
            or function.__qualname__ != name
        ):
            continue
        code = function.__code__
        if code.co_argcount + code.co_kwonlyargcount == 0 and not code.co_flags & 0x0C:  # *args, **kwargs
            continue
        used = set(_names(code))
        if used & kernels or any(_of(modules[m], used) for m in used & modules.keys()):
            yield name, value


def inner_function(function: Any) -> Any:
    """Returns the function inside decorators that name it in `__wrapped__`."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _of(module: ModuleType, used: set[str]) -> bool:
    return any(isinstance(vars(module).get(name), KernelInterface) for name in used)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def watched(host: Any, function: Any, called: Called) -> Any:
    """Returns a function that calls `called` in place of `function`.  torch.compile sees `function` alone."""
    from torch.compiler import is_compiling

    @functools.wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        return called(host, function, args, kwargs)

    return watching


class Replaced:
    """Globals of modules that were replaced, to be put back."""

    def __init__(self) -> None:
        self._done: list[tuple[dict[str, Any], str, Any, Any]] = []

    def replace(self, function: Any, by: Any, spaces: list[dict[str, Any]]) -> None:
        """Puts `by` in the place of `function` in each of these dicts of globals."""
        for space in spaces:
            for name in [name for name, value in space.items() if value is function]:
                self._done.append((space, name, function, by))
                space[name] = by

    def restore(self) -> None:
        for space, name, function, by in self._done:
            if space.get(name) is by:
                space[name] = function
        self._done.clear()


def spaces_of_modules() -> list[dict[str, Any]]:
    """Returns the globals of all modules that may use a host function."""
    modules = [m for name, m in list(sys.modules.items()) if isinstance(m, ModuleType) and not is_common(name)]
    return [vars(module) for module in modules]


# --- the stack -------------------------------------------------------------------------------------------------------


def outside(frame: types.FrameType | None) -> types.FrameType | None:
    """Returns the first frame from `frame` outwards that is not of Triton, PyTorch or evo."""
    while frame is not None and is_common(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame


def frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yields frames outwards, up to an autograd function."""
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_AUTOGRAD):
            return
        yield frame
        frame = frame.f_back


def arguments_at_begin(frame: types.FrameType) -> Mapping[str, Any] | None:
    """Returns the arguments of a function that is under way, by name; None if they may differ from those it got."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    stores = {
        "STORE_FAST",
        "DELETE_FAST",
        "STORE_DEREF",
        "DELETE_DEREF",
        "STORE_FAST_STORE_FAST",
        "STORE_FAST_LOAD_FAST",
    }
    changed: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in stores:
            value = instruction.argval
            changed |= set(value) if isinstance(value, tuple) else {value}
    if code.co_flags & 0x0C or changed & set(names):
        return None
    return {name: frame.f_locals[name] for name in names}
