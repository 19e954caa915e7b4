"""Rewrites of the grid: the order of programs, and how much work one program does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import libcst as cst

from operators.dataflow import assigned, functions_behind, single
from operators.rewrites.base import (
    ATOMICS,
    OFTEN,
    SELDOM,
    Pairs,
    Rewrite,
    axis_of,
    edited,
    extendable,
    helpers_ask_position,
    mask_of,
    pick,
    program_ids,
    with_arguments,
    with_body,
    with_parameter,
)
from operators.source import (
    Kernel,
    LaunchSite,
    Source,
    bracketed,
    called,
    children,
    code,
    expr,
    fresh,
    grid_tuple,
    grid_values,
    integer,
    names,
    replace,
    stmts,
    walk,
)


def axes_of_grid(kernel: Kernel) -> set[int | None]:
    return {axis_of(c) for c in program_ids(kernel)}


# --- order of programs -----------------------------------------------------------------------------------------------


def _swizzle(source: Source, rng: random.Random) -> str | None:
    """Programs of a two-dimensional grid renumbered in groups, so that neighbours share tiles in the L2 cache.

    The new numbers are a permutation of the old ones: within a group of rows, columns vary slowest.  A grid does not
    define the order of its programs.
    """
    kernel = pick(rng, [k for k in source.rewritable() if extendable(k) and _swizzlable(source, k)])
    if kernel is None:
        return None
    row, column = rng.choice(((0, 1), (1, 0)))
    group, flat, width, first, rows = (fresh(source, s) for s in ("GROUP", "flat", "width", "first_row", "rows_here"))
    pid = {axis: fresh(source, f"pid_{axis}") for axis in (0, 1)}
    prologue = stmts(
        f"{flat} = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)\n"
        f"{width} = {group} * tl.num_programs({column})\n"
        f"{first} = {flat} // {width} * {group}\n"
        f"{rows} = tl.minimum(tl.num_programs({row}) - {first}, {group})\n"
        f"{pid[row]} = {first} + {flat} % {width} % {rows}\n"
        f"{pid[column]} = {flat} % {width} // {rows}\n"
    )
    inner: Pairs = [(c, cst.Name(pid[a])) for c in kernel.calls("tl.program_id") if (a := axis_of(c)) in (0, 1)]
    new = replace(kernel.node, inner)
    new = with_parameter(with_body(new, [*prologue, *new.body.body]), group, constexpr=True)
    pairs: Pairs = [(n.call, with_arguments(f"{group}={rng.choice((2, 4, 8))}")) for n in source.launches_of(kernel)]
    return edited(source, [(kernel.node, new), *pairs])


def _swizzlable(source: Source, kernel: Kernel) -> bool:
    grouped = any("group" in n.value.lower() for n in walk(kernel.node) if isinstance(n, cst.Name))
    return (
        {0, 1} <= axes_of_grid(kernel)
        and None not in axes_of_grid(kernel)
        and not grouped
        and not helpers_ask_position(source, kernel)
    )


def _swizzle_flat(source: Source, rng: random.Random) -> str | None:
    """The same for a kernel that splits one program number in `pid // n` and `pid % n`.

    Only whole rows of `n` programs are renumbered, among themselves, so it is a permutation whatever the grid is.
    """
    found = [(k, f) for k in source.rewritable() if extendable(k) for f in _flat_numbers(k)]
    choice = pick(rng, found)
    if choice is None:
        return None
    kernel, (statement, pid, columns) = choice
    group, height, width, first, rows, moved = (
        fresh(source, s) for s in ("GROUP", "whole_rows", "width", "first_row", "rows_here", "moved")
    )
    lines = stmts(
        f"{height} = tl.num_programs(0) // {columns}\n"
        f"{width} = {group} * {columns}\n"
        f"{first} = {pid} // {width} * {group}\n"
        f"{rows} = tl.maximum(tl.minimum({height} - {first}, {group}), 1)\n"
        f"{moved} = ({first} + {pid} % {width} % {rows}) * {columns} + {pid} % {width} // {rows}\n"
        f"{pid} = tl.where({pid} < {height} * {columns}, {moved}, {pid})\n"
    )
    new = with_parameter(replace(kernel.node, [(statement, [*lines, statement])]), group, constexpr=True)
    pairs: Pairs = [(n.call, with_arguments(f"{group}={rng.choice((2, 4, 8))}")) for n in source.launches_of(kernel)]
    return edited(source, [(kernel.node, new), *pairs])


def _flat_numbers(kernel: Kernel) -> list[tuple[cst.BaseStatement, str, str]]:
    """(first statement that splits it, name of the program number, text of the divisor)."""
    if axes_of_grid(kernel) != {0} or any("group" in p.lower() for p in kernel.parameters):
        return []
    for statement in kernel.body:
        bound = assigned(statement)
        if bound is not None and called(bound[1]) == "tl.program_id":
            splits = [s for s in kernel.body if bound[0] in names(s) and s is not statement]
            texts = {_split(s, bound[0]) for s in splits}
            if len(splits) == 2 and len({t[1] for t in texts if t}) == 1 and {t[0] for t in texts if t} == {"//", "%"}:
                return [(splits[0], bound[0], next(t[1] for t in texts if t))]
    return []


def _split(statement: cst.BaseStatement, pid: str) -> tuple[str, str] | None:
    bound = assigned(statement)
    value = bound[1] if bound else None
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, (cst.FloorDivide, cst.Modulo)):
        return None
    if not isinstance(value.left, cst.Name) or value.left.value != pid or pid in names(value.right):
        return None
    return ("//" if isinstance(value.operator, cst.FloorDivide) else "%", code(bracketed(value.right)))


def _swap_axes(source: Source, rng: random.Random) -> str | None:
    """Axes 0 and 1 of the grid change places, in every launch and in the kernel: the other axis is launched first."""
    kernel = pick(rng, [k for k in source.rewritable() if _swappable(source, k)])
    if kernel is None:
        return None
    pairs: Pairs = []
    for call in program_ids(kernel):
        axis = axis_of(call)
        if axis in (0, 1):
            pairs.append((call.args[0].value, cst.Integer(str(1 - axis))))
    for grid in {id(g): g for n in source.launches_of(kernel) if (g := grid_tuple(source, n)[0])}.values():
        first, second = grid.elements[:2]
        pairs += [(first.value, second.value), (second.value, first.value)]
    return edited(source, pairs)


def _swappable(source: Source, kernel: Kernel) -> bool:
    if not {0, 1} <= axes_of_grid(kernel) or None in axes_of_grid(kernel) or helpers_ask_position(source, kernel):
        return False
    return all(_own_grid(source, n, 2) for n in source.launches_of(kernel))


def _own_grid(source: Source, launch: LaunchSite, axes: int) -> bool:
    """The grid is a tuple of at least `axes` plain elements that only this launch uses."""
    grid, _ = grid_tuple(source, launch)
    if grid is None or len(grid.elements) < axes or not all(isinstance(e, cst.Element) for e in grid.elements):
        return False
    if isinstance(launch.grid, cst.Name):
        mentions = sum(isinstance(n, cst.Name) and n.value == launch.grid.value for n in walk(source.module))
        return mentions == 2
    return True


# --- more work per program -------------------------------------------------------------------------------------------


def _persistent(source: Source, rng: random.Random) -> str | None:
    """Launches as many programs as the device holds at once; each walks over tiles in steps of the number of programs.

    Every tile is computed by exactly one program, as before, with the same code.
    """
    if not any(
        isinstance(n, cst.Import) and any(code(a.name) == "torch" for a in n.names) for n in walk(source.module)
    ):
        return None
    kernel = pick(rng, [k for k in source.rewritable() if loopable(source, k)])
    if kernel is None:
        return None
    loop = "range(tl.program_id(0), {total}, tl.num_programs(0))"
    per = fresh(source, "programs_per_sm")
    setup = f"{per} = {rng.choice((1, 2, 4))}\n"
    processors = "torch.cuda.get_device_properties(0).multi_processor_count"
    grid = f"(min({{total}}, {per} * {processors}),)"
    return _tile_loop(source, kernel, loop, setup, grid, None)


def _tiles_per_program(source: Source, rng: random.Random) -> str | None:
    """Each program computes several consecutive tiles one after the other; fewer programs are launched."""
    kernel = pick(rng, [k for k in source.rewritable() if loopable(source, k)])
    if kernel is None:
        return None
    per = fresh(source, "TILES_PER_PROGRAM")
    loop = f"range(tl.program_id(0) * {per}, tl.minimum(tl.program_id(0) * {per} + {per}, {{total}}))"
    setup = f"{per} = {rng.choice((2, 4, 8))}\n"
    return _tile_loop(source, kernel, loop, setup, f"(triton.cdiv({{total}}, {per}),)", per)


def loopable(source: Source, kernel: Kernel) -> bool:
    """The whole body can become the body of a loop over tiles, and the launches can be given its length."""
    launches = source.launches_of(kernel)
    if not extendable(kernel) or kernel.calls("tl.atomic_cas") or helpers_ask_position(source, kernel):
        return False
    if any(isinstance(n, (cst.Global, cst.Nonlocal, cst.FunctionDef)) for n in walk(kernel.node.body)):
        return False
    if sum(isinstance(n, cst.Return) for s in kernel.body for n in walk(s)) != sum(map(_leaves, kernel.body)):
        return False
    if any(n.line is None or n.host is None for n in launches) or kernel.autotuned:
        return False
    grids = [len(grid_values(source, n) or ()) for n in launches]
    if len({id(n.line) for n in launches}) != len(launches) or len(set(grids)) != 1:
        return False
    axes = {axis_of(c) for c in program_ids(kernel)}
    plain = all(a is not None and a < grids[0] for a in axes)
    return (
        plain
        and 0 in axes
        and constants_of_body(kernel) is not None
        and not any("tiles" in p for p in kernel.parameters)
    )


def constants_of_body(kernel: Kernel) -> list[cst.BaseStatement] | None:
    """Definitions `x: tl.constexpr = ...` of the body, which must stay outside a loop; None if they cannot."""
    known = set(kernel.constexpr)
    found: list[cst.BaseStatement] = []
    for statement in kernel.body:
        for node in walk(statement):
            if isinstance(node, cst.AnnAssign):
                if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1 or node.value is None:
                    return None
                if not names(node.value) <= known | {"tl", "triton", "min", "max"}:
                    return None
                known |= names(node.target)
                found.append(statement)
    return found


def _tile_loop(source: Source, kernel: Kernel, loop: str, setup: str, grid: str, constant: str | None) -> str:
    """The kernel's body in `loop`, launched on `grid`; `{total}` in both stands for the number of tiles."""
    launches = [(n, cast(list[str], grid_values(source, n))) for n in source.launches_of(kernel)]
    tiles = [fresh(source, f"tiles_{axis}") for axis in range(len(launches[0][1]))]
    total = " * ".join(tiles)
    body = _body_of_tile(source, kernel, tiles)
    constants = constants_of_body(kernel) or []
    head = cst.parse_statement(f"for {_TILE} in {loop.format(total=total)}:\n    pass\n")
    looped = cast(cst.For, head).with_changes(body=cst.IndentedBlock(body))
    new = with_body(kernel.node, [*constants, looped])
    for name in tiles:
        new = with_parameter(new, name, constexpr=False)
    if constant:
        new = with_parameter(new, constant, constexpr=True)
    texts = [f"{name}={name}" for name in (*tiles, *([constant] if constant else []))]
    pairs: Pairs = [(kernel.node, new)]
    for launch, values in launches:
        before = setup + "".join(f"{name} = {value}\n" for name, value in zip(tiles, values, strict=True))
        pairs += relaunched(launch, before, texts, grid.format(total=total))
    return edited(source, pairs)


def relaunched(launch: LaunchSite, before: str, texts: Sequence[str], grid: str) -> Pairs:
    """The edits of a launch that gets more arguments and another grid, after the lines `before`."""
    line, lines = cast(cst.SimpleStatementLine, launch.line), stmts(before)
    lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
    return [
        (launch.call, with_arguments(*texts, grid=grid)),
        (line, lambda updated: cst.FlattenSentinel([*lines, updated.with_changes(leading_lines=[])])),
    ]


# --- programs that do nothing -----------------------------------------------------------------------------------------


def _exact_grid(source: Source, rng: random.Random) -> str | None:
    """One program for each block instead of one for each element; those beyond the end stored nothing."""
    found = [(k, n, m) for k in source.rewritable() for n in source.launches_of(k) if (m := _block_and_end(k))]
    found = [(k, n, (block, end)) for k, n, (block, end) in found if _one_each(source, n, block, end)]
    choice = pick(rng, found)
    if choice is None:
        return None
    _, launch, (block, end) = choice
    count = code(launch.arguments[end].value)
    grid = f"lambda meta: (triton.cdiv({count}, meta[{block!r}]),)"
    return edited(source, [(launch.call, with_arguments(grid=grid))])


def _block_and_end(kernel: Kernel) -> tuple[str, str] | None:
    """The parameters `block` and `end` of a kernel whose programs each take `block` elements and store below `end`."""
    if axes_of_grid(kernel) != {0} or len(program_ids(kernel)) != 1 or kernel.calls(*ATOMICS):
        return None
    blocks = {
        code(c.args[1].value) for c in kernel.calls("tl.arange") if len(c.args) == 2 and integer(c.args[0].value) == 0
    }
    stores = kernel.calls("tl.store")
    if len(blocks) != 1 or not blocks <= kernel.constexpr or not stores:
        return None
    masks = [mask.value if (mask := mask_of(store)) else None for store in stores]
    ends = [{end for c in _conjuncts(kernel, mask) if (end := _end(kernel, c, blocks))} for mask in masks]
    common = set.intersection(*ends)
    return (blocks.pop(), common.pop()) if len(common) == 1 else None


def _conjuncts(kernel: Kernel, node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    """The conditions that all hold if `node` holds."""
    if isinstance(node, cst.Name):
        node = single(kernel, node.value)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd):
        return [*_conjuncts(kernel, node.left), *_conjuncts(kernel, node.right)]
    return [node] if node is not None else []


def _end(kernel: Kernel, node: cst.BaseExpression, blocks: set[str]) -> str | None:
    """`end` of `tl.program_id(0) * block + tl.arange(0, block) < end`."""
    match node:
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(cst.LessThan(), cst.Name(end))]):
            (block,) = blocks
            number = "tl.program_id(0)", "tl.program_id(axis=0)"
            whole = {f"{n} * {block} + tl.arange(0, {block})" for n in number}
            return end if end in kernel.parameters and _written_out(kernel, left) in whole else None
    return None


def _written_out(kernel: Kernel, node: cst.BaseExpression) -> str:
    """The text of an expression with names that are bound once replaced by what they are bound to."""
    for _ in range(3):
        bound = [(n, v) for n in walk(node) if isinstance(n, cst.Name) and (v := single(kernel, n.value)) is not None]
        node = replace(node, bound) if bound else node
    return code(node)


def _one_each(source: Source, launch: LaunchSite, block: str, end: str) -> bool:
    """Returns whether the launch has as many programs as elements."""
    values = grid_values(source, launch)
    known = end in launch.arguments and block in launch.arguments
    return values is not None and known and values == [code(launch.arguments[end].value)]


_TILE = "tile"


def _body_of_tile(source: Source, kernel: Kernel, tiles: Sequence[str]) -> list[cst.BaseStatement]:
    """The statements for one tile: the position of the program becomes that of the tile."""
    body = _without_returns([s for s in kernel.body if s not in (constants_of_body(kernel) or [])])
    pid = [fresh(source, f"tile_{axis}") for axis in range(len(tiles))] if len(tiles) > 1 else [_TILE]
    text, rest = "", _TILE
    for axis, name in enumerate(pid):
        if len(pid) > 1:
            text += f"{name} = {rest} % {tiles[axis]}\n" if axis < len(pid) - 1 else f"{name} = {rest}\n"
            rest = f"{rest} // {tiles[axis]}" if axis == 0 else f"({rest}) // {tiles[axis]}"
    changed = [n for n in kernel.parameters if n in kernel.bound and _reassigned(kernel, n)]
    local = {n: fresh(source, f"{n}_here") for n in changed}
    text += "".join(f"{new} = {old}\n" for old, new in local.items())
    pairs: Pairs = []
    block = cst.IndentedBlock(body)
    for node in walk(block):
        if called(node) == "tl.program_id":
            pairs.append((node, cst.Name(pid[axis_of(cast(cst.Call, node)) or 0])))
        elif called(node) == "tl.num_programs":
            pairs.append((node, cst.Name(tiles[axis_of(cast(cst.Call, node)) or 0])))
        elif isinstance(node, cst.Call) and _casts_position(kernel, node):
            pairs.append((node, _as_cast))
    for old, new in local.items():
        pairs += [(n, cst.Name(new)) for n in _variables(block, old)]
    replaced = replace(block, pairs)
    return [*stmts(text), *replaced.body]


def _leaves(statement: cst.BaseStatement) -> bool:
    """`if condition: return`, and nothing else."""
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return False
    lines = list(statement.body.body)
    if len(lines) == 1 and isinstance(lines[0], cst.SimpleStatementLine):
        lines = list(lines[0].body)
    return len(lines) == 1 and isinstance(lines[0], cst.Return) and lines[0].value is None


def _without_returns(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """The statements with what follows an early return put under its opposite condition: a loop goes on there."""
    for at, statement in enumerate(body):
        if _leaves(statement):
            early = cast(cst.If, statement)
            stay = cst.UnaryOperation(cst.Not(), bracketed(early.test))
            rest = _without_returns(body[at + 1 :]) or stmts("pass\n")
            return [*body[:at], early.with_changes(test=stay, body=cst.IndentedBlock(rest))]
    return list(body)


def _variables(node: cst.CSTNode, name: str) -> list[cst.Name]:
    """Occurrences of a variable; attribute names and keywords of calls do not count."""
    if isinstance(node, cst.Name):
        return [node] if node.value == name else []
    inside = [node.value] if isinstance(node, (cst.Attribute, cst.Arg)) else children(node)
    return [n for child in inside for n in _variables(child, name)]


def _reassigned(kernel: Kernel, name: str) -> bool:
    return len(kernel.bound[name]) > 1


def _casts_position(kernel: Kernel, call: cst.Call) -> bool:
    """`x.to(dtype)` of a scalar made from the program's position, which in a loop need not be a tensor."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "to" or len(call.args) != 1 or call.args[0].keyword:
        return False
    behind = functions_behind(kernel, func.value)
    position = any(c in behind for c in ("tl.program_id", "tl.num_programs"))
    return position and not any(c in behind for c in ("tl.arange", "tl.load"))


def _as_cast(call: cst.Call) -> cst.Call:
    value = cast(cst.Attribute, call.func).value
    return call.with_changes(func=expr("tl.cast"), args=[cst.Arg(value, comma=_COMMA), call.args[0]])


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


REWRITES = (
    Rewrite("swizzle", "programs of a 2-D grid renumbered in groups that share tiles in L2", _swizzle, SELDOM),
    Rewrite("swizzle_flat", "the same for a program number split by // and %", _swizzle_flat, SELDOM),
    Rewrite("swap_axes", "grid axes 0 and 1 exchanged", _swap_axes, SELDOM),
    Rewrite("persistent", "one wave of programs that loop over the tiles", _persistent),
    Rewrite("tiles_per_program", "several consecutive tiles per program, one after the other", _tiles_per_program),
    Rewrite("exact_grid", "a program for each block and not for each element", _exact_grid, OFTEN),
)
