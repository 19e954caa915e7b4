"""Module globals that kernels use, as plain values a plan can carry."""

from __future__ import annotations

import ast
import dis
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from evo.core.records import Verdict
from fitness.sandbox.jobs import JobError

_PLAIN = (bool, int, float, str, tuple, list, dict)


def constants(launched: Iterable[JITFunction]) -> dict[str, Any]:
    """Global name -> value, for the launched kernels and every helper they reach.

    Values are numbers, strings, None and lists of them, `{"dtype": "fp16"}` for tl.float16, `{"f": "inf"}` for numbers
    JSON lacks and `{"jit": "name"}` for another name of a helper.  Raises JobError(COMPILE_ERROR) for a plain number
    used in a kernel's body, which Triton refuses: it wants `NAME = tl.constexpr(...)`.  In the body of a helper, which
    may be called in branches alone that are never compiled, such a number is left out: compiling it says so.
    """
    found: dict[str, Any] = {}
    launched = list(launched)
    for kernel in _reachable(launched):
        if kernel in launched:
            _check_body(kernel)
        refused = _plain_in_body(kernel)
        for name in _names(kernel):
            if name in refused:
                continue
            value = kernel.__globals__[name]
            encoded = _encode(value)
            if encoded is not _NOTHING and encoded != {"jit": name}:
                found[name] = encoded
    return found


def _reachable(launched: Iterable[JITFunction]) -> Iterator[JITFunction]:
    waiting, seen = list(launched), set()
    while waiting:
        kernel = waiting.pop()
        if id(kernel) in seen:
            continue
        seen.add(id(kernel))
        yield kernel
        used = (kernel.__globals__[name] for name in _names(kernel))
        waiting += [v for v in used if isinstance(v, JITFunction) and v.__module__ == kernel.__module__]


def _names(kernel: JITFunction) -> list[str]:
    """Names in the kernel's source (body, defaults, annotations) that are globals of its module."""
    names = {n.id for n in ast.walk(kernel.parse()) if isinstance(n, ast.Name)}
    return sorted(names & kernel.__globals__.keys())


def _check_body(kernel: JITFunction) -> None:
    for name in _plain_in_body(kernel):
        raise JobError(
            Verdict.COMPILE_ERROR,
            f"kernel {kernel.__name__!r} uses the global {name!r}, which is no constexpr; "
            f"write {name} = tl.constexpr({kernel.__globals__[name]!r})",
            _line(kernel, name),
        )


def _plain_in_body(kernel: JITFunction) -> list[str]:
    """Globals of plain Python values that the body uses, in its order."""
    used = [i.argval for i in dis.get_instructions(kernel.fn) if i.opname == "LOAD_GLOBAL"]
    return [name for name in used if isinstance(kernel.__globals__.get(name), _PLAIN)]


def _line(kernel: JITFunction, name: str) -> int:
    """Where the candidate's source uses `name` in `kernel`."""
    tree = kernel.parse()
    inside = min(n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)
    first = next(i for i, line in enumerate(kernel.raw_src) if line.lstrip().startswith("def "))
    return int(kernel.starting_line_number) + first + inside - 1


_NOTHING = object()


def _encode(value: Any) -> Any:
    while isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, JITFunction):
        return {"jit": value.__name__}
    if isinstance(value, (tuple, list)):
        items = [_encode(v) for v in value]
        return _NOTHING if any(i is _NOTHING for i in items) else items
    return _NOTHING


def merged(per_call: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The constants of all calls.  Raises JobError(UNSUPPORTED) where a global changes between them."""
    result: dict[str, Any] = {}
    for call, found in per_call.items():
        for name, value in found.items():
            if result.setdefault(name, value) != value:
                raise JobError(
                    Verdict.UNSUPPORTED,
                    f"global {name!r} is {value!r} in call {call!r} and {result[name]!r} in another; "
                    "pass it to the kernel as a constexpr argument",
                )
    return result
