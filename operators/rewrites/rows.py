"""The rewrite that puts several rows side by side in one program."""

from __future__ import annotations

import random
from typing import cast

import libcst as cst

from operators.dataflow import assigned, functions_behind, pointers
from operators.rewrites.base import ATOMICS, ELEMENTWISE, Pairs, Rewrite, edited, pick, with_arguments, with_parameter
from operators.rewrites.grid import axes_of_grid, constants_of_body, loopable
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
    kernel = pick(rng, [k for k in source.rewritable() if _row_kernel(source, k)])
    if kernel is None:
        return None
    (launch,) = source.launches_of(kernel)
    rows, total = fresh(source, "BLOCK_ROWS"), fresh(source, "total_rows")
    new = replace(kernel.node, _as_tile(kernel, rows, total))
    new = with_parameter(with_parameter(new, total, constexpr=False), rows, constexpr=True)
    count = cast(list[str], grid_values(source, launch))[0]
    grid = f"(triton.cdiv({count}, {rows}),)"
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


def _row_kernel(source: Source, kernel: Kernel) -> bool:
    """One-dimensional, no branches, loops whose bounds are the same for every row, elementwise functions only."""
    if not loopable(source, kernel) or axes_of_grid(kernel) != {0} or kernel.calls("tl.num_programs"):
        return False
    if not pointers(kernel, "tl.load").isdisjoint(pointers(kernel, "tl.store")) or kernel.calls(*ATOMICS):
        return False
    if constants_of_body(kernel) or len(kernel.calls("tl.program_id")) != 1 or not kernel.calls("tl.arange"):
        return False
    if _vector_rows(kernel):
        return False
    for node in walk(kernel.node.body):
        if isinstance(node, (cst.If, cst.While, cst.IfExp, cst.Subscript, cst.ListComp, cst.Assert)):
            return False
        if isinstance(node, cst.For) and "tl.program_id" in functions_behind(kernel, node.iter):
            return False
        if isinstance(node, cst.For) and "tl.load" in functions_behind(kernel, node.iter):
            return False
        if isinstance(node, cst.Call) and not _plain_call(node):
            return False
    return all(_clear_start(kernel, n) for n in _carried(kernel))


def _vector_rows(kernel: Kernel) -> bool:
    """The position is multiplied by a block: a program already has many elements of a vector, not one row."""
    return any(
        isinstance(n, cst.BinaryOperation)
        and "tl.program_id" in functions_behind(kernel, n)
        and "tl.arange" not in functions_behind(kernel, n)
        and names(n) & kernel.constexpr & {m for c in kernel.calls("tl.arange") for m in names(c)}
        for n in walk(kernel.node.body)
    )


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


def _as_tile(kernel: Kernel, rows: str, total: str) -> Pairs:
    pairs: Pairs = []
    for node in walk(kernel.node.body):
        function = called(node)
        if function == "tl.program_id":
            number = f"tl.program_id(0) * {rows} + tl.arange(0, {rows})"
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
