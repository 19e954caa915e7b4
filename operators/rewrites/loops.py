"""Rewrites of loops inside a kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import libcst as cst

from operators.dataflow import assigned
from operators.rewrites.base import OFTEN, SELDOM, Rewrite, edited, pick
from operators.source import Kernel, Source, add_argument, bindings, called, expr, names, walk


def _range_option(option: str, values: tuple[int, ...]) -> Callable[[Source, random.Random], str | None]:
    """An edit that turns `range(...)` into `tl.range(..., option=value)`: the same iterations, scheduled otherwise."""

    def edit(source: Source, rng: random.Random) -> str | None:
        calls = [
            cast(cst.Call, loop.iter)
            for kernel in source.kernels.values()
            for loop in walk(kernel.node.body)
            if isinstance(loop, cst.For) and called(loop.iter) in ("range", "tl.range")
        ]
        call = pick(rng, [c for c in calls if option not in {a.keyword.value for a in c.args if a.keyword}])
        if call is None:
            return None
        value = rng.choice(values)
        return edited(
            source, [(call, lambda c: add_argument(c.with_changes(func=expr("tl.range")), f"{option}={value}"))]
        )

    return edit


# Functions of triton.language without side effects that depend on their arguments only.
_PURE = {
    "tl.arange", "tl.zeros", "tl.full", "tl.cdiv", "tl.program_id", "tl.num_programs", "tl.maximum", "tl.minimum",
    "tl.where", "tl.exp", "tl.exp2", "tl.log", "tl.sqrt", "tl.rsqrt", "tl.abs", "tl.max", "tl.min", "tl.sum", "tl.cast",
    "tl.trans", "min", "max", "float",
}  # fmt: skip


def _hoist(source: Source, rng: random.Random) -> str | None:
    """An assignment whose value does not change moves in front of its loop.

    The name is bound nowhere else, so nothing can have seen another value; the expression is free of memory accesses,
    so that computing it for a loop of no iterations does no harm.
    """
    sites = []
    for kernel in source.kernels.values():
        for loop in [n for n in walk(kernel.node.body) if isinstance(n, cst.For)]:
            sites += [(loop, line) for line in loop.body.body if _invariant(kernel, loop, line)]
    site = pick(rng, sites)
    if site is None:
        return None
    loop, line = site
    moved = line.with_changes(leading_lines=[])  # type: ignore[call-arg]

    def before(updated: cst.For) -> Any:
        head = moved.with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel([head, updated.with_changes(leading_lines=[])])

    return edited(source, [(line, cst.RemoveFromParent()), (loop, before)]) if len(loop.body.body) > 1 else None


def _invariant(kernel: Kernel, loop: cst.For, line: cst.CSTNode) -> bool:
    bound = assigned(line)
    if bound is None or len(kernel.bound[bound[0]]) != 1:
        return False
    body = cst.FunctionDef(cst.Name("body"), cst.Parameters(), cast(cst.IndentedBlock, loop.body))
    changing = set(bindings(body)) | names(loop.target)
    calls = [n for n in walk(bound[1]) if isinstance(n, cst.Call)]
    pure = all(called(c) in _PURE or _is_cast(c) for c in calls)
    return pure and not names(bound[1]) & changing


def _is_cast(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"


REWRITES = (
    Rewrite("pipelined_range", "a loop with its own pipeline stages", _range_option("num_stages", (2, 3, 4)), OFTEN),
    Rewrite("unrolled_range", "a loop unrolled by a factor", _range_option("loop_unroll_factor", (2, 4)), OFTEN),
    Rewrite("hoist", "an assignment that does not change moved out of its loop", _hoist, SELDOM),
)
