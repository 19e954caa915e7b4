"""Follows the values of a kernel back to their definitions, to what they depend on and to the memory they address."""

from __future__ import annotations

import libcst as cst

from operators.source import Kernel, called, keyword, names, walk


def assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """Name and value of a statement line that is one plain assignment `name = value`."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        only = statement.body[0]
        if isinstance(only, cst.Assign) and len(only.targets) == 1 and isinstance(only.targets[0].target, cst.Name):
            return only.targets[0].target.value, only.value
    return None


def single(kernel: Kernel, name: str) -> cst.BaseExpression | None:
    """The value of a name that is bound once in the kernel, and not a parameter."""
    bound = kernel.bound.get(name, [])
    return bound[0] if len(bound) == 1 and name not in kernel.parameters else None


def closure(kernel: Kernel, node: cst.CSTNode) -> set[str]:
    """Returns every name that a value depends on, through all assignments of the kernel."""
    bound = kernel.bound
    reached: set[str] = set()
    todo = list(names(node))
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [n for value in bound.get(name, []) if value is not None for n in names(value)]
    return reached


def values_behind(kernel: Kernel, node: cst.CSTNode) -> list[cst.CSTNode]:
    """The value itself, and what the names that it depends on are bound to."""
    bound = kernel.bound
    return [node, *(v for n in closure(kernel, node) for v in bound.get(n, []) if v is not None)]


def functions_behind(kernel: Kernel, node: cst.CSTNode) -> set[str]:
    """Dotted names of all functions called on the way to a value."""
    return {called(c) for v in values_behind(kernel, node) for c in walk(v)} - {""}


def pointers(kernel: Kernel, *functions: str) -> set[str]:
    """Parameters that are the base address of these memory accesses (e.g. "tl.load")."""
    bound = kernel.bound
    found: set[str] = set()
    seen: set[str] = set()

    def follow(node: cst.CSTNode) -> None:
        while isinstance(node, cst.BinaryOperation):
            node = node.left
        if isinstance(node, cst.Call) and node.args:
            base = keyword(node, "base") or node.args[0]
            follow(base.value)
        elif isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            if node.value in kernel.parameters:
                found.add(node.value)
            for value in bound.get(node.value, []):
                if value is not None:
                    follow(value)

    for call in kernel.calls(*functions):
        if call.args:
            follow(call.args[0].value)
    return found


def lanes_compared(kernel: Kernel, block: str) -> bool:
    """Returns whether a comparison (a mask) depends on `tl.arange(0, block)`, so that lanes can stay unused."""

    def lanes(node: cst.CSTNode) -> bool:
        return any(called(n) == "tl.arange" and block in names(n) for n in walk(node))

    for node in walk(kernel.node.body):
        if isinstance(node, cst.Comparison) and any(map(lanes, values_behind(kernel, node))):
            return True
    return False
