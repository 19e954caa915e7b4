"""Checks what a kernel can reach from its imports: Triton's language, not the Python behind it.

While Triton compiles a kernel, it calls any Python function that the kernel names.  Its interpreter executes kernels as
Python.  Modules of `triton.language` import modules themselves, and those lead to all of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from evo.core.records import Verdict
from fitness.frontend.rules.names import KERNEL_ATTRIBUTES
from fitness.sandbox.jobs import JobError

# Attributes by which a function leads to its module, its globals, its source.
_OF_FUNCTIONS = {name for name in dir(tl.max) if not name.startswith("_")} - KERNEL_ATTRIBUTES
_PLAIN = (JITFunction, tl.dtype, tl.constexpr, bool, int, float, str, type(None))
_HOST = (triton.cdiv, triton.next_power_of_2)  # Host functions that kernels may call too.


def check_reach(function: ast.FunctionDef, space: Mapping[str, Any], helpers: str) -> None:
    """Raises JobError(REJECTED) if a kernel names anything but Triton's language.

    space: the names that the kernel sees, with their values.
    helpers: the name of another module in `space`, which holds only kernels.
    """
    parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    seen = {name: value for name, value in space.items() if name not in parameters}
    defaults = [d for d in (*function.args.defaults, *function.args.kw_defaults) if d is not None]
    for root in (*defaults, *function.body):
        for node, text in _foreign(root, seen, helpers):
            message = f"kernel {function.name}: `{text}` is not part of triton.language; kernels use nothing else"
            raise JobError(Verdict.REJECTED, message, getattr(node, "lineno", function.lineno))


def _foreign(root: ast.AST, space: Mapping[str, Any], helpers: str) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that a kernel may not contain, each with its text."""
    bases = {id(node.value) for node in ast.walk(root) if isinstance(node, ast.Attribute)}
    for node in ast.walk(root):
        if isinstance(node, ast.Attribute) and (node.attr.startswith("_") or node.attr in _OF_FUNCTIONS):
            yield node, f".{node.attr}"
        elif isinstance(node, ast.Name) and node.id == "getattr":
            yield node, node.id  # The names of attributes must be visible in the source.
        elif isinstance(node, (ast.Name, ast.Attribute)):
            value = _value(node, space)
            if isinstance(value, ModuleType):
                # A module is a step on the way to a function; it may not get another name.
                permitted = _is_language(value.__name__) or value.__name__ in ("triton", helpers)
                allowed = permitted and id(node) in bases
            else:
                allowed = value is _UNKNOWN or _is_of_language(value)
            if not allowed:
                yield node, ast.unparse(node)


_UNKNOWN = object()


def _value(node: ast.expr, space: Mapping[str, Any]) -> Any:
    """The value of a name, or of a path through modules; _UNKNOWN for all else."""
    if isinstance(node, ast.Name):
        return space.get(node.id, _UNKNOWN)
    if isinstance(node, ast.Attribute):
        base = _value(node.value, space)
        return getattr(base, node.attr, _UNKNOWN) if isinstance(base, ModuleType) else _UNKNOWN
    return _UNKNOWN


def _is_of_language(value: Any) -> bool:
    module = str(getattr(value, "__module__", ""))
    # The language's enumerations are defined in the compiler, triton._C.
    return isinstance(value, _PLAIN) or value in _HOST or _is_language(module) or module.startswith("triton._C.")


def _is_language(module: str) -> bool:
    return module == "triton.language" or module.startswith("triton.language.")
