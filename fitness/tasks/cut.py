"""Cuts functions out of their modules, with all that they use, as the text of a file that stands alone.

What a function uses from outside must be something a new file can have too: a module or name that the file may import,
another function or kernel of the same kind, or a plain constant.  A name stands for one thing in the new file.
"""

from __future__ import annotations

import ast
import copy
import dis
import inspect
import logging
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evo.core import syntax
from evo.core.errors import TaskError
from fitness.tasks.installed import is_installed

PLAIN = "a module, a function, a torch.dtype, or a constant of numbers, texts, tuples, lists and dicts"
_TUNERS = "triton.runtime.autotuner"
Definition = ast.FunctionDef | ast.ClassDef


class SourceWriter:
    """Collects what a new file has to say: imports, constants, functions and kernels, each name once."""

    hint = "make it inside the function"

    def __init__(self, importable: Callable[[str], bool], taken: Mapping[str, object] | None = None) -> None:
        """Keeps the settings.

        importable: whether the file may import a module; names of others are copied.  taken: names with a meaning.
        """
        self._importable = importable
        self._taken: dict[str, object] = dict(taken or {})  # what a name stands for in the file
        self._copied: set[str] = set()
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.definitions: list[str] = []  # constants and functions, each after those that it needs

    def text(self) -> str:
        """Returns the text of the file."""
        return "\n\n\n".join(block for block in ("\n".join(sorted(self.imports)), *self.definitions) if block) + "\n"

    def function(self, label: str, given: Any, *, bare: bool = False) -> str:
        """Copies a function, kernel or class with all it uses; returns its name in the file.

        label: what messages call it.  bare: leave out tuners and heuristics around a kernel.
        Raises TaskError if it cannot stand alone.
        """
        function = python_function(given) if callable(given) or hasattr(given, "fn") else given
        if not isinstance(function, (types.FunctionType, type)):
            raise TaskError(f"{label}: expected a function, got {given!r:.100}; give it as `def`, {self.hint}")
        source, node = self._prepared(label, given, *_source(label, function, self.hint), bare)
        own = node.name
        self.take(own, given, label)
        if source in self._copied:
            return own
        self._copied.add(source)
        space = vars(sys.modules[function.__module__]) if isinstance(function, type) else function.__globals__
        for name in sorted(_outer_names(function, node)):
            if name in space:
                self._global(name, space[name], label)
        self.functions.append(source)
        self.definitions.append(source)
        return own

    def _global(self, name: str, value: Any, label: str) -> None:
        if name in self._taken and same(self._taken[name], value):
            return
        if self._is_copied(value):
            own = self.function(self._label(name, label), value)
            if own != name:
                self.take(name, value, label)
                self._define(f"{name} = {own}")
            return
        self.take(name, value, label)
        if isinstance(value, types.ModuleType):
            if not self._importable(value.__name__):
                raise self.uncopied(
                    label, name, f"the module {value.__name__}, which is no part of an installed package"
                )
            self.imports.append(f"import {value.__name__}" + f" as {name}" * (name != value.__name__))
        elif where := self._home(value):
            self.imports.append(f"from {where[0]} import {where[1]}" + f" as {name}" * (name != where[1]))
        elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
            self.imports.append(f"from torch import {str(value).removeprefix('torch.')} as {name}")
        else:
            self._define(f"{name} = {self.literal(name, value, label)}")

    def _prepared(self, label: str, given: Any, source: str, node: Definition, bare: bool) -> tuple[str, Definition]:
        """Returns the text of a function as it is copied."""
        return source, node

    def _label(self, name: str, label: str) -> str:
        """Returns what messages call a function that another one uses."""
        return f"{name}, which {label} uses,"

    def _is_copied(self, value: Any) -> bool:
        """Returns whether a value is a function, which is copied if its module cannot be imported."""
        return isinstance(value, types.FunctionType) and not self._importable(value.__module__)

    def _define(self, text: str) -> None:
        self.constants.append(text)
        self.definitions.append(text)

    def take(self, name: str, value: object, label: str) -> None:
        """Gives a name its meaning.  Raises TaskError if it has another one."""
        if name in self._taken and not same(self._taken[name], value):
            raise TaskError(
                f"{label}: expected the name {name} to stand for one thing in the task, got two; rename one of them"
            )
        self._taken[name] = value

    def _home(self, value: Any) -> tuple[str, str] | None:
        """Returns module and name under which the file can import a class or function; else None."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or "." in name or not self._importable(module):
            return None
        return (module, name) if getattr(sys.modules.get(module), name, None) is value else None

    def literal(self, name: str, value: Any, label: str = "") -> str:
        """Returns `value` as Python source."""
        text = repr(value)
        try:
            same = ast.literal_eval(text) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if not same:
            raise self.uncopied(label, name, f"{type(value).__name__} {text:.60}")
        return text

    def uncopied(self, label: str, name: str, what: str) -> TaskError:
        """Returns the error for a value that a new file cannot have."""
        where = f"{label} uses {name}" if label else name
        return TaskError(f"{where}: expected {PLAIN}, got {what}; {self.hint}")


class KernelWriter(SourceWriter):
    """Writes a file with kernels that stands alone.

    It may import torch, triton, NumPy, Python's own modules and packages other than that of the first function.  It
    copies kernels wherever they are, functions that name one, and all of the first function's package.
    """

    hint = "give the kernel a file of its own by hand, and start a task from that by `evo tasks new DIR KERNEL.py`"

    def __init__(self, original: Callable[[Any], Any] = lambda value: value) -> None:
        """Keeps the settings.  original: what a value stands for that a watcher has replaced."""
        super().__init__(self._is_importable)
        self._original = original
        self._package = ""
        self.left_out: list[str] = []  # decorators of functions that cannot be copied, and why

    def function(self, label: str, given: Any, *, bare: bool = False) -> str:
        self._package = self._package or python_function(given).__module__.partition(".")[0]
        return super().function(label, given, bare=bare)

    def _global(self, name: str, value: Any, label: str) -> None:
        super()._global(name, self._original(value), label)

    def _label(self, name: str, label: str) -> str:
        return f"{label} > {name}"

    def _prepared(self, label: str, given: Any, source: str, node: Definition, bare: bool) -> tuple[str, Definition]:
        """Returns a function without decorators that cannot be copied; a kernel with Triton's own tuner alone."""
        replaced: dict[int, str] = {}
        tuner = _tuner(given)
        space = getattr(python_function(given), "__globals__", {})
        for number, decorator in enumerate(node.decorator_list):
            name = _name_of(decorator)
            if bare and name != "jit":
                replaced[number] = ""
            elif tuner is not None and type(tuner).__module__ != _TUNERS and "autotune" in name:
                self._import("triton")
                replaced[number] = f"@{self._autotune(label, tuner)}"
            elif name == "jit" and isinstance(decorator, ast.Call) and not _is_literal(decorator):
                self._import("triton")
                replaced[number] = f"@{_jit(given)}"
            elif tuner is None and not _is_kernel(given) and (why := self._not_copied(label, decorator, space)):
                replaced[number] = ""
                self.left_out.append(f"@{ast.unparse(decorator)} of {node.name}: {why}")
        if not replaced:
            return source, node
        lines = source.split("\n")
        kept: list[str] = []
        for number, decorator in enumerate(node.decorator_list):
            own = lines[decorator.lineno - 1 : decorator.end_lineno]
            kept += own if number not in replaced else [replaced[number]] if replaced[number] else []
        text = "\n".join([*kept, *lines[node.lineno - 1 :]])
        (found,) = syntax.parse(text).body
        assert isinstance(found, (ast.FunctionDef, ast.ClassDef))
        return text, found

    def _not_copied(self, label: str, decorator: ast.expr, space: Mapping[str, Any]) -> str:
        """Returns why a decorator cannot be copied, "" if it can; then it is."""
        before = copy.deepcopy((self._copied, self.imports, self.constants, self.functions, self.definitions))
        taken = dict(self._taken)
        try:
            for name in sorted({n.id for n in ast.walk(decorator) if isinstance(n, ast.Name)} & space.keys()):
                self._global(name, space[name], label)
        except TaskError as error:
            self._copied, self.imports, self.constants, self.functions, self.definitions = before
            self._taken = taken
            return str(error).partition(f"; {self.hint}")[0]
        return ""

    def _autotune(self, label: str, tuner: Any) -> str:
        """Returns the decorator by which Triton itself chooses among the configurations of a tuner."""
        configs = ", ".join(self._config("configs", config, label) for config in tuner.configs)
        return f"triton.autotune(configs=[{configs}], key={list(tuner.keys)!r})"

    def _config(self, name: str, config: Any, label: str) -> str:
        """Returns a configuration of a tuner as Python source."""
        self._import("triton")
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        options |= {"num_ctas": config.num_ctas} if config.num_ctas != 1 else {}
        options |= {"maxnreg": config.maxnreg} if config.maxnreg is not None else {}
        if config.pre_hook is not None:
            raise self.uncopied(label, name, "a triton.Config with a pre_hook")
        named = ", ".join(f"{option}={value!r}" for option, value in options.items())
        return f"triton.Config({self.literal(name, config.kwargs, label)}, {named})"

    def _is_importable(self, module: str) -> bool:
        return _is_common(module) or (module.partition(".")[0] != self._package and is_installed(module))

    def _is_copied(self, value: Any) -> bool:
        function = python_function(value) if callable(value) or hasattr(value, "fn") else None
        if isinstance(value, type):
            return not self._is_importable(value.__module__)
        if not isinstance(function, types.FunctionType) or _is_common(function.__module__):
            return False
        return not self._is_importable(function.__module__) or _is_kernel(value) or _names_kernel(function)

    def _home(self, value: Any) -> tuple[str, str] | None:
        return super()._home(value) or _home_of_kernel(value)

    def literal(self, name: str, value: Any, label: str = "") -> str:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        if kind == "torch.dtype":
            self._import("torch")
            return str(value)
        if kind.startswith("triton.") and type(value).__name__ in ("dtype", "constexpr"):
            self._import("triton.language as tl")
            if type(value).__name__ == "dtype":
                return next(f"tl.{n}" for n in _languages_dtypes() if _languages_dtypes()[n] == value)
            return f"tl.constexpr({self.literal(name, value.value, label)})"
        if kind == f"{_TUNERS}.Config":
            return self._config(name, value, label)
        if isinstance(value, logging.Logger):
            self._import("logging")
            return f"logging.getLogger({value.name!r})"
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            items = [self.literal(name, item, label) for item in value]
            inside = ", ".join(items)
            return f"[{inside}]" if type(value) is list else f"({inside}{',' * (len(items) == 1)})"
        if type(value) is dict:
            pairs = [f"{self.literal(name, k, label)}: {self.literal(name, v, label)}" for k, v in value.items()]
            return "{" + ", ".join(pairs) + "}"
        return super().literal(name, value, label)

    def _import(self, what: str) -> None:
        module, _, name = what.partition(" as ")
        self.take(name or module, sys.modules[module], f"a constant of {module}")
        if f"import {what}" not in self.imports:
            self.imports.append(f"import {what}")


def python_function(given: Any) -> Any:
    """Returns the Python function inside a kernel, a tuner or a decorated function; a class as it is."""
    if isinstance(given, type):
        return given
    while _is_kernel(given):
        given = given.fn
    return inspect.unwrap(given) if callable(given) else given


def _is_kernel(value: Any) -> bool:
    """Returns whether a value is a kernel, or a tuner or heuristics around one, also if a package made its class."""
    return hasattr(value, "fn") and any(kind.__module__.startswith("triton.") for kind in type(value).__mro__)


def _names_kernel(function: types.FunctionType) -> bool:
    return any(_is_kernel(function.__globals__.get(name)) for name in _global_names(function.__code__))


def same(one: object, other: object) -> bool:
    """Returns whether a name may stand for either: one object, or equal numbers and texts."""
    return one is other or (type(one) is type(other) and isinstance(one, (bool, int, float, str)) and one == other)


def _is_common(module: str) -> bool:
    top = module.partition(".")[0]
    return top in ("torch", "triton", "numpy") or (top in sys.stdlib_module_names and top != "__main__")


def _home_of_kernel(value: Any) -> tuple[str, str] | None:
    """Returns module and name of a kernel or function of Triton's own, such as `tl.sum`."""
    function = python_function(value)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if isinstance(module, str) and _is_common(module) and getattr(sys.modules.get(module), name, None) is value:
        return module, name
    return None


def _languages_dtypes() -> dict[str, Any]:
    language = sys.modules["triton.language"]
    return {name: value for name, value in vars(language).items() if type(value).__name__ == "dtype"}


def _source(label: str, function: Any, hint: str) -> tuple[str, Definition]:
    """Returns the text of a function and its syntax tree.  Raises TaskError if it cannot stand on its own."""
    if function.__name__ == "<lambda>":
        raise TaskError(f"{label}: expected a function with a name, got a lambda; write it as `def`, {hint}")
    if isinstance(function, types.FunctionType) and function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise TaskError(
            f"{label}: expected a function that stands on its own, got one that uses {names} of the function around "
            f"it; move it to the top level of its file, {hint}"
        )
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise TaskError(
            f"{label}: expected a function whose source can be read, got: {error}; define it in a file or in a cell of "
            f"a notebook, {hint}"
        ) from error
    try:
        (node,) = syntax.parse(text).body
    except (SyntaxError, ValueError):
        node = None
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        raise TaskError(f"{label}: expected a `def` on lines of its own, got {text.strip()!r:.80}; {hint}")
    return text.rstrip(), node


def _name_of(decorator: ast.expr) -> str:
    """Returns the last name of what a decorator calls."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _is_literal(call: ast.Call) -> bool:
    """Returns whether all options of a decorator are plain constants."""
    try:
        return bool([ast.literal_eval(keyword.value) for keyword in call.keywords])
    except (ValueError, TypeError):
        return False


def _jit(given: Any) -> str:
    """Returns the decorator of a kernel, with the values that its options have."""
    while _is_kernel(given.fn):
        given = given.fn
    named = ("do_not_specialize", "do_not_specialize_on_alignment")
    options = {name: getattr(given, name, None) or given.__dict__.get("kwargs", {}).get(name) for name in named}
    return f"triton.jit({', '.join(f'{name}={list(value)!r}' for name, value in options.items() if value)})"


def _tuner(given: Any) -> Any:
    """Returns the tuner around a kernel; None without."""
    while _is_kernel(given):
        if hasattr(given, "configs"):
            return given
        given = given.fn
    return None


def _outer_names(function: Any, node: Definition) -> set[str]:
    """Returns names that a function reads from its module: in its body, header and decorators."""
    if isinstance(node, ast.ClassDef):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {node.name}
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    annotations = (*(a.annotation for a in every), node.returns)
    around = (*node.decorator_list, *arguments.defaults, *arguments.kw_defaults, *annotations)
    names = {n.id for part in around if part is not None for n in ast.walk(part) if isinstance(n, ast.Name)}
    return names | set(_global_names(function.__code__))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
