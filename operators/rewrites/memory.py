"""Rewrites of loads and stores: cache hints, and masks that are not needed when sizes divide evenly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import libcst as cst

from operators.dataflow import single
from operators.rewrites.base import SELDOM, Pairs, Rewrite, axis_of, edited, extendable, pick, shuffled, with_parameter
from operators.source import (
    Kernel,
    Source,
    add_argument,
    called,
    code,
    dotted,
    drop_arguments,
    expr,
    fresh,
    grid_tuple,
    integer,
    keyword,
    replace,
    walk,
)


def _hint(functions: dict[str, tuple[str, ...]], option: str) -> Callable[[Source, random.Random], str | None]:
    """An edit that gives an access without a hint a value of `option`: how to cache, not what to read."""

    def edit(source: Source, rng: random.Random) -> str | None:
        excluded = {"eviction_policy", "cache_modifier", "volatile"}  # PTX takes one of them an access
        calls = [c for k in source.kernels.values() for c in k.calls(*functions) if not excluded & _keywords(c)]
        call = pick(rng, [c for c in calls if len(c.args) <= 3 and not any(a.star for a in c.args)])
        if call is None:
            return None
        text = f'{option}="{rng.choice(functions[called(call)])}"'
        return edited(source, [(call, lambda updated: add_argument(updated, text))])

    return edit


def _keywords(call: cst.Call) -> set[str]:
    return {a.keyword.value for a in call.args if a.keyword is not None}


# --- masks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mask:
    """Facts that prove a kernel's masks: its loops, and the host's launches."""

    source: Source
    kernel: Kernel
    loops: dict[str, cst.For]  # by loop variable

    def sizes(self, mask: cst.BaseExpression) -> set[tuple[str, str]] | None:
        """Pairs (size, block) such that the mask is true everywhere if each block divides its size; None: unknown."""
        mask = self._plain(mask)
        if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
            left, right = self.sizes(mask.left), self.sizes(mask.right)
            return None if left is None or right is None else left | right
        if isinstance(mask, cst.Comparison) and len(mask.comparisons) == 1:
            target = mask.comparisons[0]
            if isinstance(target.operator, cst.LessThan):
                lanes = self._plain(mask.left)
                pair = self._bounded(lanes, target.comparator) or self._left(lanes, self._plain(target.comparator))
                return {pair} if pair else None
        return None

    def _plain(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Without `[:, None]`, and names replaced by the one value they have."""
        while True:
            if isinstance(node, cst.Subscript):
                node = node.value
            elif isinstance(node, cst.Name) and (value := single(self.kernel, node.value)) is not None:
                node = value
            else:
                return node

    def _bounded(self, offsets: cst.BaseExpression, bound: cst.BaseExpression) -> tuple[str, str] | None:
        """`start + tl.arange(0, BLOCK) < SIZE` with a start that is a multiple of the block and below the size."""
        size = self._size(bound)
        if size is None:
            return None
        block = self._arange(offsets)
        if block is None and isinstance(offsets, cst.BinaryOperation) and isinstance(offsets.operator, cst.Add):
            for start, lanes in ((offsets.left, offsets.right), (offsets.right, offsets.left)):
                block = self._arange(self._plain(lanes))
                if block is not None and not self._aligned(start, size, block):
                    return None
                if block is not None:
                    break
        return (size, block) if block is not None else None

    def _left(self, lanes: cst.BaseExpression, bound: cst.BaseExpression) -> tuple[str, str] | None:
        """`tl.arange(0, BLOCK) < SIZE - start`, of a start that is a multiple of the block and below the size."""
        block = self._arange(lanes)
        if block is None or not isinstance(bound, cst.BinaryOperation) or not isinstance(bound.operator, cst.Subtract):
            return None
        size = self._size(bound.left)
        return (size, block) if size is not None and self._aligned(bound.right, size, block) else None

    def _size(self, node: cst.BaseExpression) -> str | None:
        """The parameter that a node names, if it has no default and is never assigned to."""
        if not isinstance(node, cst.Name) or node.value not in self.kernel.parameters:
            return None
        name = node.value
        return None if name in self.kernel.defaults or len(self.kernel.bound[name]) != 1 else name

    def _arange(self, node: cst.BaseExpression) -> str | None:
        if called(node) != "tl.arange" or len(cast(cst.Call, node).args) != 2:
            return None
        start, stop = (a.value for a in cast(cst.Call, node).args)
        named = isinstance(stop, cst.Name) and stop.value in self.kernel.constexpr - self.kernel.defaults
        return stop.value if integer(start) == 0 and named and isinstance(stop, cst.Name) else None

    def _aligned(self, start: cst.BaseExpression, size: str, block: str) -> bool:
        """A loop variable that counts to the size in blocks; one that counts the blocks, or a program's number, times
        the block.
        """
        if counted := self._range(start):
            return [code(n) for n in counted] == ["0", size, block]
        start = self._plain(start)
        if not isinstance(start, cst.BinaryOperation) or not isinstance(start.operator, cst.Multiply):
            return False
        for number, width in ((start.left, start.right), (start.right, start.left)):
            if code(width) != block:
                continue
            if counted := self._range(number):
                return self._counts_blocks(counted, size, block)
            number = self._plain(number)
            if called(number) == "tl.program_id":
                return self._grid_covers(axis_of(cast(cst.Call, number)), size, block)
        return False

    def _range(self, variable: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Start, end and step of the range that a loop variable counts; none if it is not such a variable."""
        loop = self.loops.get(variable.value) if isinstance(variable, cst.Name) else None
        if loop is None or called(loop.iter) not in ("range", "tl.range"):
            return []
        zero, one = cst.Integer("0"), cst.Integer("1")
        match [a.value for a in cast(cst.Call, loop.iter).args if a.keyword is None]:
            case [end]:
                return [zero, end, one]
            case [start, end]:
                return [start, end, one]
            case [_, _, _] as given:
                return given
        return []

    def _counts_blocks(self, counted: list[cst.BaseExpression], size: str, block: str) -> bool:
        """`range(tl.cdiv(size, block))`"""
        start, end, step = counted
        end = self._plain(end)
        if integer(start) != 0 or integer(step) != 1 or called(end) not in ("tl.cdiv", "triton.cdiv"):
            return False
        return [code(a.value) for a in cast(cst.Call, end).args] == [size, block]

    def _grid_covers(self, axis: int | None, size: str, block: str) -> bool:
        """Returns whether every launch has `triton.cdiv(size, block)` programs along the axis."""
        for launch in self.source.launches_of(self.kernel):
            grid, _ = grid_tuple(self.source, launch)
            if grid is None or axis is None or axis >= len(grid.elements):
                return False
            count = grid.elements[axis].value
            if not called(count).endswith("cdiv") or not {size, block} <= set(launch.arguments) | self._tuned(block):
                return False
            given = [code(a.value) for a in cast(cst.Call, count).args]
            if len(given) != 2:
                return False
            blocks = {f'["{block}"]', f"['{block}']"}
            same = block in launch.arguments and given[1] == code(launch.arguments[block].value)
            if given[0] != code(launch.arguments[size].value) or not (
                same or any(given[1].endswith(b) for b in blocks)
            ):
                return False
        return True

    def _tuned(self, block: str) -> set[str]:
        return {block} if self.kernel.autotuned else set()


def _even(source: Source, rng: random.Random) -> str | None:
    """Accesses whose mask is true everywhere when the blocks divide the sizes lose it in that case.

    `triton.heuristics` decides it for every launch, and both branches are there.  The proof needs offsets of the form
    `start + tl.arange(0, BLOCK) < SIZE` with an aligned start.
    """
    for kernel in shuffled(rng, [k for k in source.rewritable() if extendable(k)]):
        if kernel.plain or kernel.decorators[:-1] in (("triton.autotune",), ("autotune",)):
            new = _specialised(source, kernel)
            if new is not None:
                return edited(source, [(kernel.node, new)])
    return None


def _specialised(source: Source, kernel: Kernel) -> cst.FunctionDef | None:
    counts = [n for n in walk(kernel.node.body) if isinstance(n, cst.For) and isinstance(n.target, cst.Name)]
    heads: dict[str, set[str]] = {}
    for loop in counts:
        heads.setdefault(dotted(loop.target), set()).add(code(loop.iter))
    bound = kernel.bound  # a loop variable means one thing: equal ranges, and no other assignment
    loops = {v: n for n in counts if len(heads[v := dotted(n.target)]) == 1 and all(b is None for b in bound[v])}
    masks = _Mask(source, kernel, loops)
    provable: dict[int, set[tuple[str, str]]] = {}
    for call in kernel.calls("tl.load", "tl.store"):
        given = keyword(call, "mask")
        sizes = masks.sizes(given.value) if given else None
        if sizes:
            provable[id(call)] = sizes
    flag = fresh(source, "EVEN")
    pairs: Pairs = []
    for line in [n for n in walk(kernel.node.body) if isinstance(n, cst.SimpleStatementLine)]:
        calls = [n for n in walk(line) if id(n) in provable]
        if calls:
            pairs.append((line, _branches(flag, line, calls)))
    if not pairs:
        return None
    used = sorted(set().union(*provable.values()))
    test = " and ".join(f'args["{size}"] > 0 and args["{size}"] % args["{block}"] == 0' for size, block in used)
    decorator = cst.Decorator(expr(f'triton.heuristics({{"{flag}": lambda args: {test}}})'))
    new = replace(kernel.node, pairs)
    new = with_parameter(new, flag, constexpr=True)
    return cast(cst.FunctionDef, new.with_changes(decorators=[*new.decorators[:-1], decorator, new.decorators[-1]]))


def _branches(flag: str, line: cst.SimpleStatementLine, calls: list[cst.CSTNode]) -> cst.If:
    def unmasked(call: Any) -> cst.Call:
        return drop_arguments(call, {"mask", "other"})

    plain = replace(line, [(c, unmasked) for c in calls]).with_changes(leading_lines=[])
    masked = line.with_changes(leading_lines=[])
    return cst.If(
        test=cst.Name(flag),
        body=cst.IndentedBlock([plain]),
        orelse=cst.Else(cst.IndentedBlock([masked])),
        leading_lines=line.leading_lines,
    )


# --- what the compiler may assume ------------------------------------------------------------------------------------


def _contiguous(source: Source, rng: random.Random) -> str | None:
    """`pid * BLOCK + tl.arange(0, BLOCK)` starts at a multiple of BLOCK and has BLOCK consecutive values."""
    sites = []
    for kernel in source.kernels.values():
        for node in walk(kernel.node.body):
            block = _tile_offsets(node)
            if block in kernel.constexpr:
                sites.append((node, block))
    site = pick(rng, [s for s in sites if not _has_compiler_hint(source, s[0])])
    if site is None:
        return None
    node, block = site
    hinted = expr(f"tl.max_contiguous(tl.multiple_of({code(node)}, {block}), {block})")
    return edited(source, [(node, hinted)])


def _tile_offsets(node: cst.CSTNode) -> str:
    """BLOCK of `something * BLOCK + tl.arange(0, BLOCK)`, "" of anything else."""
    if (
        isinstance(node, cst.BinaryOperation)
        and isinstance(node.operator, cst.Add)
        and called(node.right) == "tl.arange"
    ):
        start, right = node.left, cast(cst.Call, node.right)
        if isinstance(start, cst.BinaryOperation) and isinstance(start.operator, cst.Multiply) and len(right.args) == 2:
            block = dotted(right.args[1].value)
            if block and dotted(start.right) == block and integer(right.args[0].value) == 0:
                return block
    return ""


def _has_compiler_hint(source: Source, node: cst.CSTNode) -> bool:
    hints = [n for n in walk(source.module) if called(n) in ("tl.multiple_of", "tl.max_contiguous")]
    return any(node is inner for h in hints for inner in walk(h))


def _assume(source: Source, rng: random.Random) -> str | None:
    """A program's number is never negative; saying so lets index arithmetic become unsigned."""
    sites = []
    for kernel in source.kernels.values():
        if kernel.calls("tl.assume"):
            continue
        for line in kernel.body:
            if (
                isinstance(line, cst.SimpleStatementLine)
                and len(line.body) == 1
                and isinstance(line.body[0], cst.Assign)
            ):
                target = line.body[0].targets[0].target
                if called(line.body[0].value) == "tl.program_id" and isinstance(target, cst.Name):
                    sites.append((line, target.value))
    site = pick(rng, sites)
    if site is None:
        return None
    line, name = site
    return edited(source, [(line, [line, cst.parse_statement(f"tl.assume({name} >= 0)\n")])])


_EVICTION = ("evict_first", "evict_last")

REWRITES = (
    Rewrite("eviction_policy", "a load or store told how long its lines should stay in cache",
            _hint({"tl.load": _EVICTION, "tl.store": _EVICTION}, "eviction_policy"), SELDOM),
    Rewrite("cache_modifier", "a load or store told which cache to use",
            _hint({"tl.load": (".cg", ".ca"), "tl.store": (".cs", ".cg", ".wt")}, "cache_modifier"), SELDOM),
    Rewrite("even_masks", "no masks where blocks divide sizes (triton.heuristics)", _even),
    Rewrite("contiguous_hint", "offsets of a tile marked as aligned and contiguous", _contiguous, SELDOM),
    Rewrite("assume", "program numbers declared non-negative", _assume, SELDOM),
)  # fmt: skip
