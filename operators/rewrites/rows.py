"""The rewrite that puts several rows side by side in one program."""

from __future__ import annotations

import random
from typing import cast

import libcst as cst

from operators.dataflow import assigned, functions_behind, pointers, values_behind
from operators.rewrites.base import (
    ATOMICS,
    ELEMENTWISE,
    Pairs,
    Rewrite,
    axis_of,
    edited,
    pick,
    program_ids,
    with_arguments,
    with_parameter,
)
from operators.rewrites.grid import constants_of_body, loopable
from operators.source import (
    Kernel,
    Source,
    bindings,
    called,
    code,
    expr,
    fresh,
    grid_values,
    integer,
    keyword,
    names,
    replace,
    stmts,
    walk,
)

_REDUCTIONS = {"tl.max", "tl.min", "tl.sum"}
_OTHERS = {
    "tl.store", "tl.program_id", "tl.arange", "tl.zeros", "tl.full", "tl.cdiv", "tl.assume", "float", "range",
    "tl.range",
}  # fmt: skip


def _rows_per_program(source: Source, rng: random.Random) -> str | None:
    """A kernel with one row per program computes several rows as one two-dimensional tile.

    What depends on the row becomes a column, vectors become tiles, reductions run along axis 1 and keep it.  Rows past
    the end repeat the last row, and write the same values to the same place.
    """
    choice = pick(rng, [(k, axis) for k in source.rewritable() for axis in _row_axes(source, k)])
    if choice is None:
        return None
    kernel, axis = choice
    (launch,) = source.launches_of(kernel)
    rows, total = fresh(source, "BLOCK_ROWS"), fresh(source, "total_rows")
    new = replace(kernel.node, _as_tile(kernel, axis, rows, total))
    new = with_parameter(with_parameter(new, total, constexpr=False), rows, constexpr=True)
    counts = cast(list[str], grid_values(source, launch))
    count = counts[axis]
    counts[axis] = f"triton.cdiv({count}, {rows})"
    grid = f"({', '.join(counts)},)"
    call = with_arguments(launch, f"{total}={count}", f"{rows}={rows}", grid=grid)
    line = cast(cst.SimpleStatementLine, launch.line)
    (setup,) = stmts(f"{rows} = {rng.choice((2, 4, 8))}\n")
    setup = setup.with_changes(leading_lines=line.leading_lines)
    pairs: Pairs = [
        (launch.call, call),
        (line, lambda updated: cst.FlattenSentinel([setup, updated.with_changes(leading_lines=[])])),
        (kernel.node, new),
    ]
    return edited(source, pairs)


def _row_axes(source: Source, kernel: Kernel) -> list[int]:
    """The axes of the grid that count rows.

    No branches but those that are decided when the kernel is compiled, loops whose bounds are the same for every row,
    elementwise functions only.
    """
    if not loopable(source, kernel) or kernel.calls("tl.num_programs") or constants_of_body(kernel):
        return []
    if not pointers(kernel, "tl.load").isdisjoint(pointers(kernel, "tl.store")) or kernel.calls(*ATOMICS):
        return []
    if not kernel.calls("tl.arange") or not all(_clear_start(kernel, n) for n in _carried(kernel)):
        return []
    for node in walk(kernel.node.body):
        if isinstance(node, (cst.While, cst.Subscript, cst.ListComp, cst.Assert)):
            return []
        if isinstance(node, (cst.If, cst.IfExp)) and not names(node.test) <= kernel.constexpr:
            return []
        if isinstance(node, cst.For) and {"tl.program_id", "tl.load"} & functions_behind(kernel, node.iter):
            return []
        if isinstance(node, cst.Call) and not _plain_call(node):
            return []
    axes = [axis_of(call) for call in program_ids(kernel)]
    return [a for a in set(axes) if a is not None and axes.count(a) == 1 and not _vector_rows(kernel, a)]


def _vector_rows(kernel: Kernel, axis: int) -> bool:
    """The position is multiplied by a block: a program already has many elements of a vector, not one row."""
    blocks = kernel.constexpr & {m for c in kernel.calls("tl.arange") for m in names(c)}
    for node in walk(kernel.node.body):
        match node:
            case cst.BinaryOperation(left, cst.Multiply(), right):
                named = {s.value for s in (left, right) if isinstance(s, cst.Name)}
                if named & blocks and axis in _positions(kernel, node):
                    return True
    return False


def _positions(kernel: Kernel, node: cst.CSTNode) -> set[int | None]:
    """The axes of the grid that a value depends on."""
    calls = (c for v in values_behind(kernel, node) for c in walk(v) if isinstance(c, cst.Call))
    return {axis_of(c) for c in calls if called(c) == "tl.program_id"}


def _plain_call(call: cst.Call) -> bool:
    function = called(call)
    if function in _REDUCTIONS:
        axis = keyword(call, "axis") or (call.args[1] if len(call.args) == 2 else None)
        return 1 <= len(call.args) <= 2 and (axis is None or integer(axis.value) == 0)
    if function in ("tl.zeros", "tl.full"):
        return (
            bool(call.args)
            and isinstance(call.args[0].value, (cst.Tuple, cst.List))
            and len(call.args[0].value.elements) == 1
        )
    method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
    return function in ELEMENTWISE | _OTHERS or method


def _carried(kernel: Kernel) -> set[str]:
    """Names that a loop both reads from before and sets."""
    found: set[str] = set()
    for loop in [n for n in walk(kernel.node.body) if isinstance(n, cst.For)]:
        inside = set(bindings(_as_function(loop)))
        outside = {n for s in kernel.body if s is not loop and (a := assigned(s)) for n in [a[0]]}
        found |= inside & outside
    return found


def _as_function(loop: cst.For) -> cst.FunctionDef:
    return cst.FunctionDef(cst.Name("body"), cst.Parameters(), cast(cst.IndentedBlock, loop.body))


def _clear_start(kernel: Kernel, name: str) -> bool:
    """What a loop carries starts as a number, or as a tl.zeros or tl.full."""
    values = [a[1] for s in kernel.body if (a := assigned(s)) and a[0] == name]
    return all(called(v) in ("tl.zeros", "tl.full") or _number(v) for v in values)


def _number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _number(node.expression)
    return isinstance(node, cst.Float) or called(node) == "float"


def _as_tile(kernel: Kernel, axis: int, rows: str, total: str) -> Pairs:
    pairs: Pairs = []
    for node in walk(kernel.node.body):
        function = called(node)
        if function == "tl.program_id" and axis_of(cast(cst.Call, node)) == axis:
            number = f"tl.program_id({axis}) * {rows} + tl.arange(0, {rows})"
            pairs.append((node, expr(f"tl.minimum({number}, {total} - 1)[:, None]")))
        elif function == "tl.arange":
            pairs.append((node, expr(f"{code(node)}[None, :]")))
        elif function in _REDUCTIONS:
            pairs.append((node, _along_row))
        elif function in ("tl.zeros", "tl.full"):
            shape = cast(cst.Tuple, cast(cst.Call, node).args[0].value)
            pairs.append((shape, expr(f"({rows}, {code(shape.elements[0].value)})")))
    for statement in kernel.body:
        bound = assigned(statement)
        if bound and bound[0] in _carried(kernel) and _number(bound[1]):
            pairs.append((bound[1], expr(f"tl.full(({rows}, 1), {code(bound[1])}, dtype=tl.float32)")))
    return pairs


def _along_row(call: cst.Call) -> cst.Call:
    return call.with_changes(args=cast(cst.Call, expr(f"f({code(call.args[0].value)}, axis=1, keep_dims=True)")).args)


REWRITES = (Rewrite("rows_per_program", "several rows per program, side by side as a 2-D tile", _rows_per_program),)
