"""Finds the place for another value of a variable that the host computes: after its last assignment, before any use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from operators.dataflow import assigned
from operators.source import Binding, LaunchSite, bindings, called, code, integer, names, walk


@dataclass(frozen=True, eq=False)
class Override:
    """A statement of the host beside which `variable = number` settles what every later use of the variable sees."""

    variable: str
    anchor: cst.BaseStatement
    after: bool
    literal: cst.Integer | None  # the number of such an assignment, if one stands there already.
    values: tuple[Binding, ...]  # what the variable is bound to now

    def statement(self, value: int) -> cst.BaseStatement:
        return cst.parse_statement(f"{self.variable} = {value}\n")


def find_override(launch: LaunchSite, variable: str) -> Override | None:
    """The place for a variable that the host of a launch binds; None if some use could see two values."""
    host = launch.host
    bound = bindings(host).get(variable, []) if host is not None else []
    if host is None or not bound or not isinstance(host.body, cst.IndentedBlock):
        return None
    body = list(host.body.body)
    binding = [i for i, s in enumerate(body) if _binds(s, variable)]
    first = 1 if _is_docstring(body[0]) and len(body) > 1 else 0
    last = binding[-1] if binding else first - 1
    launched = next(i for i, s in enumerate(body) if any(n is launch.call for n in walk(s)))
    if launched <= last or any(_reads(body[i], variable, i in binding) for i in range(last + 1)):
        return None
    if not binding:
        return Override(variable, body[first], False, None, tuple(bound))
    value = assigned(body[last])
    literal = value[1] if value is not None and isinstance(value[1], cst.Integer) else None
    return Override(variable, body[last], True, literal, tuple(bound))


def _binds(statement: cst.BaseStatement, variable: str) -> bool:
    return variable in bindings(cst.Module([statement]))  # type: ignore[list-item]


def _is_docstring(statement: cst.BaseStatement) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))


def _reads(statement: cst.BaseStatement, variable: str, binding: bool) -> bool:
    """The variable is used for something else than to decide its own value."""
    if not binding:
        return variable in names(statement)
    lines = [n for n in walk(statement) if isinstance(n, cst.SimpleStatementLine)]
    return any(variable in names(n) and not _binds(n, variable) for n in lines)


def hint(values: Sequence[Binding]) -> int | None:
    """The largest power of two (8 and more) written in the values: about what they come to."""
    found = [integer(n) or 0 for v in values if v is not None for n in walk(v)]
    return max((n for n in found if n >= 8 and n & (n - 1) == 0), default=None)


def divisor(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Returns the divisor of a size: `b` of `triton.cdiv(n, b)` and of `n // b`."""
    if isinstance(node, cst.Call) and called(node).endswith("cdiv") and len(node.args) == 2:
        return node.args[1].value
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide):
        return node.right
    return None


def is_tiled(launch: LaunchSite, parameter: str, variable: str = "") -> bool:
    """Returns whether the host or a loop of the kernel cuts a size into blocks of this parameter: it may be smaller.

    A block that is not (`triton.next_power_of_2(n)` lanes for a row of n) has to cover what it covers.
    """
    keys = (f'["{parameter}"]', f"['{parameter}']")
    for piece in _pieces(launch.host or launch.grid):
        if (variable and variable in names(piece)) or code(piece).endswith(keys):
            return True
    for node in walk(launch.kernel.node.body):
        if isinstance(node, cst.Call) and called(node) in ("range", "tl.range"):
            steps = [a.value for a in node.args if a.keyword is None][2:]
            if steps and parameter in names(steps[0]):
                return True
    return any(parameter in names(piece) for piece in _pieces(launch.kernel.node.body))


def _pieces(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    yield from (d for n in walk(node) if (d := divisor(n)) is not None)
