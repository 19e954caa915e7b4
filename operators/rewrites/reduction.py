"""Rewrites of reductions over a row: whole row at once, tile by tile, maximum and sum in one pass."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import libcst as cst

from operators.dataflow import assigned, functions_behind, pointers
from operators.rewrites.base import ATOMICS, OFTEN, Pairs, Rewrite, edited, pick, with_body
from operators.source import (
    Kernel,
    LaunchSite,
    Source,
    bindings,
    called,
    code,
    dotted,
    expr,
    fresh,
    integer,
    keyword,
    names,
    replace,
    stmts,
    walk,
)

# --- one-dimensional facts -------------------------------------------------------------------------------------------


def _loop_bounds(loop: cst.CSTNode) -> tuple[str, str, str] | None:
    """(variable, size, block) of `for variable in range(0, size, block)`."""
    if not isinstance(loop, cst.For) or called(loop.iter) not in ("range", "tl.range") or loop.orelse is not None:
        return None
    args = [a.value for a in cast(cst.Call, loop.iter).args if a.keyword is None]
    if len(args) != 3 or integer(args[0]) != 0 or not all(isinstance(a, cst.Name) for a in (loop.target, *args[1:])):
        return None
    return dotted(loop.target), dotted(args[1]), dotted(args[2])


def axis_of_reduction(call: cst.Call) -> int | None:
    """The axis of a reduction; 0 if the call does not name one."""
    arg = keyword(call, "axis") or (call.args[1] if len(call.args) == 2 else None)
    return integer(arg.value) if arg is not None else 0


def only_launch(source: Source, kernel: Kernel) -> LaunchSite | None:
    launches = source.launches_of(kernel)
    return launches[0] if len(launches) == 1 and not launches[0].opaque and not kernel.autotuned else None


# --- whole row -------------------------------------------------------------------------------------------------------


def _whole_row(source: Source, rng: random.Random) -> str | None:
    """Loops `for start in range(0, N, BLOCK)` become one masked step with BLOCK = the next power of two of N.

    A loop of one iteration is its body.  For N = 0 the step's accesses are all masked, as every access in these loops
    has to be.  Equal loads of the same data are then made once.
    """
    choice = pick(rng, [(k, n) for k in source.rewritable() if (n := _whole_launch(source, k)) is not None])
    if choice is None:
        return None
    kernel, launch = choice
    size, block = next(b for s in kernel.body if (b := _loop_bounds(s)))[1:]
    body: list[cst.BaseStatement] = []
    for statement in kernel.body:
        bounds = _loop_bounds(statement)
        if bounds is None:
            body.append(statement)
        else:
            loop = cast(cst.For, statement)
            inner = list(cast(Sequence[cst.BaseStatement], loop.body.body))
            zero: Pairs = [(n, cst.Integer("0")) for s in inner for n in walk(s) if dotted(n) == bounds[0]]
            lines = [cast(cst.BaseStatement, replace(s, zero)) for s in inner]
            if isinstance(lines[0], cst.SimpleStatementLine):
                lines[0] = lines[0].with_changes(leading_lines=loop.leading_lines)
            body += lines
    function = _without_repeats(kernel, with_body(kernel.node, [_without_zero(s) for s in body]))
    sized = expr(f"triton.next_power_of_2({code(launch.arguments[size].value)})")
    argument = launch.arguments[block]
    return edited(source, [(kernel.node, function), (argument.value, sized)])


def _whole_launch(source: Source, kernel: Kernel) -> LaunchSite | None:
    """The launch of a kernel whose loops all step through one size by one block, if the rewrite is sound for it."""
    launch = only_launch(source, kernel)
    loops = [n for n in walk(kernel.node.body) if isinstance(n, (cst.For, cst.While))]
    bounds = [_loop_bounds(n) for n in loops]
    nested = any(n not in kernel.body for n in loops)
    if launch is None or not loops or nested or None in bounds or kernel.calls("tl.dot"):
        return None
    if len({b[1:] for b in bounds if b}) != 1 or bounds[0] is None:
        return None
    _, size, block = bounds[0]
    if block not in kernel.constexpr or not {size, block} <= set(launch.arguments) or size in bindings_of_body(kernel):
        return None
    if not all(s in (cst.SimpleStatementLine, cst.For) for s in map(type, kernel.body)) or kernel.calls(*ATOMICS):
        return None
    for loop in loops:
        assert isinstance(loop, cst.For)
        if any(not isinstance(s, cst.SimpleStatementLine) for s in loop.body.body):
            return None
        if not all(_masked_by(kernel, loop, a, size) for a in _accesses(loop.body)):
            return None
    outside = [s for s in kernel.body if not isinstance(s, cst.For)]
    starts = {b[0] for b in bounds if b}
    if any(starts & names(s) for s in outside) or not only_lanes(kernel, block):
        return None
    if any(_lanes_in(kernel, a.args[0]) for s in outside for a in _accesses(s)):
        return None
    given = launch.arguments[block].value
    grid = source.resolve(launch.grid, launch.host)
    free = isinstance(source.resolve(given, launch.host), cst.Integer) and grid is not None
    return launch if free and not (names(given) & names(cast(cst.CSTNode, grid))) else None


def _accesses(node: cst.CSTNode) -> list[cst.Call]:
    return [n for n in walk(node) if isinstance(n, cst.Call) and called(n) in ("tl.load", "tl.store") and n.args]


def _masked_by(kernel: Kernel, loop: cst.For, access: cst.Call, size: str) -> bool:
    """The mask of an access, perhaps through a name that the loop sets, is `... < size`."""
    mask = keyword(access, "mask")
    if mask is None:
        return False
    value = mask.value
    if isinstance(value, cst.Name):
        inside = [a[1] for s in loop.body.body if (a := assigned(s)) and a[0] == dotted(value)]
        if len(inside) != 1:
            return False
        value = inside[0]
    if not isinstance(value, cst.Comparison) or len(value.comparisons) != 1 or not _lanes_in(kernel, value.left):
        return False
    target = value.comparisons[0]
    return isinstance(target.operator, cst.LessThan) and dotted(target.comparator) == size


def _lanes_in(kernel: Kernel, node: cst.CSTNode) -> bool:
    return "tl.arange" in functions_behind(kernel, node)


def bindings_of_body(kernel: Kernel) -> set[str]:
    """Names the body itself binds (a parameter that it binds again among them)."""
    body = cst.FunctionDef(cst.Name("body"), cst.Parameters(), kernel.node.body)
    return set(bindings(body))


def only_lanes(kernel: Kernel, block: str) -> bool:
    """The block is used as a number of lanes, a shape or a step of loops, and not to compute with."""
    allowed = 0
    for node in walk(kernel.node.body):
        if called(node) in ("tl.arange", "tl.zeros", "tl.full") or isinstance(node, cst.For):
            shape = node.iter if isinstance(node, cst.For) else node
            allowed += sum(dotted(n) == block for n in walk(shape) if isinstance(n, cst.Name))
    return allowed == sum(dotted(n) == block for n in walk(kernel.node.body) if isinstance(n, cst.Name))


def _without_zero(statement: cst.BaseStatement) -> cst.BaseStatement:
    """`0 + x` and `x + 0` as `x`."""

    class Simplify(cst.CSTTransformer):
        def leave_BinaryOperation(self, original_node: Any, updated_node: Any) -> Any:
            if isinstance(updated_node.operator, cst.Add):
                if integer(updated_node.left) == 0:
                    return updated_node.right
                if integer(updated_node.right) == 0:
                    return updated_node.left
            return updated_node

    return cast(cst.BaseStatement, statement.visit(Simplify()))


def _without_repeats(kernel: Kernel, function: cst.FunctionDef) -> cst.FunctionDef:
    """Straight-line code without assignments that repeat an earlier one whose inputs have not changed.

    Loads are repeated only while nothing has been stored to the memory that they read.  A load that differs from an
    earlier one in `other` alone is kept: masked lanes matter.
    """
    loaded, stored = pointers(kernel, "tl.load"), pointers(kernel, "tl.store")
    if loaded & stored:
        return function
    seen: dict[str, str] = {}  # name -> text of its value
    kept: list[cst.BaseStatement] = []
    for statement in cast(Sequence[cst.BaseStatement], function.body.body):
        bound = assigned(statement)
        if bound is not None and seen.get(bound[0]) == code(bound[1]):
            continue
        kept.append(statement)
        for name in _bound_by(statement):
            seen = {n: t for n, t in seen.items() if n != name and name not in names(expr(t))}
        if bound is not None and bound[0] not in names(bound[1]):
            seen[bound[0]] = code(bound[1])
    return with_body(function, kept)


def _bound_by(statement: cst.BaseStatement) -> set[str]:
    return set(bindings(cst.Module([cast(Any, statement)])))


# --- maximum and sum of exponentials in one pass ---------------------------------------------------------------------


def _online_softmax(source: Source, rng: random.Random) -> str | None:
    """A loop for the maximum m of x and one for the sum of exp(x - m) become one.

    Each step rescales the sum by exp(old m - new m) and adds exp(x - new m).  If all of x so far is -inf, the shift is
    0 so that no -inf - -inf arises: the sum stays 0, as it is for such a tile in two passes.
    """
    sites = [(k, f) for k in source.kernels.values() for f in _max_then_sum(k)]
    site = pick(rng, sites)
    if site is None:
        return None
    _, (first, second, between, largest, total, x) = site
    new, shift = fresh(source, f"new_{largest}"), fresh(source, "shift")
    text = (
        f"{new} = tl.maximum({largest}, tl.max({x}, axis=0))\n"
        f'{shift} = tl.where({new} == -float("inf"), 0.0, {new})\n'
        f"{total} = {total} * tl.exp({largest} - {shift}) + tl.sum(tl.exp({x} - {shift}), axis=0)\n"
        f"{largest} = {new}\n"
    )
    body = [*list(first.body.body)[:-1], *stmts(text)]
    merged = first.with_changes(body=first.body.with_changes(body=body))
    pairs: Pairs = [(first, [*between, merged]), (second, cst.RemoveFromParent())]
    return edited(source, [*pairs, *((s, cst.RemoveFromParent()) for s in between)])


def _max_then_sum(kernel: Kernel) -> Iterator[tuple[cst.For, cst.For, list[Any], str, str, str]]:
    loops = [s for s in kernel.body if _loop_bounds(s)]
    for first, second in pairwise(loops):
        between = list(kernel.body)[kernel.body.index(first) + 1 : kernel.body.index(second)]
        head = _last_line(first), _last_line(second)
        if head[0] is None or head[1] is None or _prefix(first) != _prefix(second):
            continue
        largest = _running_maximum(head[0])
        if largest is None:
            continue
        total = _running_sum(head[1], *largest)
        starts = [a for s in between if (a := assigned(s))]
        plain = len(starts) == len(between) and all(names(v) <= {"float"} for _, v in starts)
        if (
            total
            and plain
            and _starts_at_zero(kernel, total)
            and [n for n, _ in starts] in ([], [total])
            and largest[0] not in _prefix_names(first)
        ):
            yield cast(cst.For, first), cast(cst.For, second), between, largest[0], total, largest[1]


def _starts_at_zero(kernel: Kernel, name: str) -> bool:
    """Returns whether the first step rescales zero."""
    values = [a[1] for s in kernel.body if (a := assigned(s)) and a[0] == name]
    return len(values) == 1 and (code(values[0]) in ("0.0", "0") or called(values[0]) == "tl.zeros")


def _prefix(loop: Any) -> tuple[Any, ...]:
    """Text of a loop but its last line."""
    return code(loop.target), code(loop.iter), *(code(s) for s in list(loop.body.body)[:-1])


def _prefix_names(loop: Any) -> set[str]:
    return {n for s in list(loop.body.body)[:-1] for n in names(s)}


def _last_line(loop: Any) -> cst.BaseSmallStatement | None:
    lines = list(loop.body.body)
    simple = all(isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1 for s in lines)
    stores = any(called(n) in ("tl.store", *ATOMICS) for n in walk(loop))
    return cast(cst.BaseSmallStatement, lines[-1].body[0]) if simple and not stores else None


def _running_maximum(line: cst.BaseSmallStatement) -> tuple[str, str] | None:
    """(m, x) of `m = tl.maximum(m, tl.max(x, axis=0))`."""
    if not isinstance(line, cst.Assign) or called(line.value) != "tl.maximum":
        return None
    target, args = dotted(line.targets[0].target), cast(cst.Call, line.value).args
    if len(args) != 2 or dotted(args[0].value) != target or called(args[1].value) != "tl.max":
        return None
    inner = cast(cst.Call, args[1].value)
    x = dotted(inner.args[0].value) if inner.args else ""
    return (target, x) if x and target and len(inner.args) <= 2 and axis_of_reduction(inner) == 0 else None


def _running_sum(line: cst.BaseSmallStatement, largest: str, x: str) -> str | None:
    """s of `s += tl.sum(tl.exp(x - m), axis=0)`."""
    if not isinstance(line, cst.AugAssign) or not isinstance(line.operator, cst.AddAssign):
        return None
    call = line.value
    if not isinstance(call, cst.Call) or called(call) != "tl.sum" or len(call.args) not in (1, 2):
        return None
    matches = axis_of_reduction(call) == 0 and code(call.args[0].value) == f"tl.exp({x} - {largest})"
    return dotted(line.target) if matches else None


REWRITES = (
    Rewrite("whole_row", "a row handled in one masked tile instead of a loop, its loads made once", _whole_row, OFTEN),
    Rewrite("online_softmax", "maximum and sum of exponentials in one pass", _online_softmax),
)
