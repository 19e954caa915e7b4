"""Rewrites of arithmetic that compute the same value, up to rounding."""

from __future__ import annotations

import random
from typing import Any, cast

import libcst as cst

from operators.dataflow import functions_behind, single
from operators.rewrites.base import OFTEN, SELDOM, Pairs, Rewrite, edited, pick, shuffled
from operators.source import Kernel, Source, bracketed, called, code, expr, names, walk

_LOG2_E = "1.4426950408889634"  # log2(e), to float64 precision


def _exp2(source: Source, rng: random.Random) -> str | None:
    """exp(x) = 2^(x log2 e); the hardware computes powers of two."""
    kernel = pick(rng, [k for k in source.kernels.values() if k.calls("tl.exp", "tl.math.exp")])
    if kernel is None:
        return None

    def change(call: cst.Call) -> cst.Call:
        power = cst.BinaryOperation(bracketed(call.args[0].value), cst.Multiply(), cst.Float(_LOG2_E))
        return call.with_changes(func=expr("tl.exp2"), args=[call.args[0].with_changes(value=power)])

    calls = [c for c in kernel.calls("tl.exp", "tl.math.exp") if len(c.args) == 1]
    return edited(source, [(c, change) for c in calls])


def _reciprocal(source: Source, rng: random.Random) -> str | None:
    """x / s = x * (1 / s) for a tile x and one s per row: one division a row instead of one an element."""
    sites = []
    for kernel in source.kernels.values():
        for node in walk(kernel.node.body):
            if not (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)):
                continue
            if _reduced(kernel, node.right) and "tl.arange" in functions_behind(kernel, node.left):
                sites.append(node)
    site = pick(rng, sites)
    if site is None:
        return None

    def change(node: cst.BinaryOperation) -> cst.BinaryOperation:
        inverse = cst.BinaryOperation(cst.Float("1.0"), cst.Divide(), bracketed(node.right))
        return node.with_changes(operator=cst.Multiply(), right=bracketed(inverse))

    return edited(source, [(site, change)])


def _reduced(kernel: Kernel, node: cst.BaseExpression) -> bool:
    """A name (perhaps `[:, None]`) that is the result of a reduction, or a parameter of the kernel."""
    inner = node.value if isinstance(node, cst.Subscript) else node
    if not isinstance(inner, cst.Name):
        return False
    values = [v for v in kernel.bound.get(inner.value, []) if v is not None]
    sums = {"tl.sum", "tl.max", "tl.sqrt"}
    augmented = any(
        isinstance(n, cst.AugAssign) and inner.value in names(n.target) and sums & {called(c) for c in walk(n.value)}
        for n in walk(kernel.node.body)
    )
    return augmented or any(sums & {called(c) for c in walk(v)} for v in values)


def _redundant_cast(source: Source, rng: random.Random) -> str | None:
    """`x.to(t).to(t)` is `x.to(t)`; so is a second cast of a name whose only value is such a cast."""
    sites = []
    for kernel in source.kernels.values():
        for node in walk(kernel.node.body):
            kind, value = _cast(node)
            if kind and isinstance(value, cst.Name):
                value = single(kernel, value.value) or value
            if kind and _cast(value)[0] == kind:
                sites.append(node)
    site = pick(rng, sites)
    return edited(source, [(site, lambda call: call.func.value)]) if site is not None else None


def _cast(node: Any) -> tuple[str, Any]:
    """(dtype, value) of `value.to(dtype)`, ("", None) of anything else."""
    if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "to"):
        return "", None
    plain = len(node.args) == 1 and node.args[0].keyword is None
    return (code(node.args[0].value), node.func.value) if plain else ("", None)


def _dot_accumulate(source: Source, rng: random.Random) -> str | None:
    """`acc += tl.dot(a, b)` as `acc = tl.dot(a, b, acc)`: the addition happens in the tensor core."""
    sites: Pairs = []
    for kernel in source.kernels.values():
        for node in walk(kernel.node.body):
            if (
                isinstance(node, cst.AugAssign)
                and isinstance(node.operator, cst.AddAssign)
                and called(node.value) == "tl.dot"
            ):
                call = cast(cst.Call, node.value)
                if len(call.args) == 2 and all(a.keyword is None for a in call.args) and _float32(kernel, node.target):
                    left, right = (code(a.value) for a in call.args)
                    new = f"{code(node.target)} = tl.dot({left}, {right}, {code(node.target)})\n"
                    line = cast(cst.SimpleStatementLine, cst.parse_statement(new))
                    sites.append((node, line.body[0]))
    chosen = pick(rng, sites)
    return edited(source, [chosen]) if chosen else None


def _float32(kernel: Kernel, target: cst.BaseExpression) -> bool:
    """The accumulator starts as float32, which is what tl.dot adds to."""
    values = kernel.bound.get(target.value, []) if isinstance(target, cst.Name) else []
    return any(v is not None and called(v) in ("tl.zeros", "tl.full") and "tl.float32" in code(v) for v in values)


# --- index types -----------------------------------------------------------------------------------------------------


def _narrow_index(source: Source, rng: random.Random) -> str | None:
    """Casts of positions to int64 are dropped: for tensors of less than 2^31 elements 32 bits are enough."""
    for kernel in shuffled(rng, list(source.kernels.values())):
        casts = [n for n in walk(kernel.node.body) if _cast(n)[0] == "tl.int64" and _position(kernel, _cast(n)[1])]
        if casts:
            return edited(source, [(n, lambda call: call.func.value) for n in casts])
    return None


def _widen_index(source: Source, rng: random.Random) -> str | None:
    """The program's number as int64: the same values, and offsets that cannot overflow."""
    sites = []
    for kernel in source.kernels.values():
        heads = [n.iter for n in walk(kernel.node.body) if isinstance(n, cst.For)]
        if any("tl.program_id" in functions_behind(kernel, h) for h in heads):
            continue  # a loop over int64 changes the type of what it carries
        cast_already = {id(_cast(n)[1]) for n in walk(kernel.node.body) if _cast(n)[0]}
        sites += [c for c in kernel.calls("tl.program_id") if id(c) not in cast_already and not _reassigned(kernel)]
    site = pick(rng, sites)
    return edited(source, [(site, expr(f"{code(site)}.to(tl.int64)"))]) if site is not None else None


def _reassigned(kernel: Kernel) -> bool:
    """Returns whether a name made from the program's number gets a second value: its type would have to change too."""
    bound = kernel.bound
    return any(
        len(values) > 1 and any(v is not None and "tl.program_id" in functions_behind(kernel, v) for v in values)
        and "tl.load" not in set().union(*(functions_behind(kernel, v) for v in values if v is not None))
        for values in bound.values()
    )  # fmt: skip


def _position(kernel: Kernel, node: cst.BaseExpression) -> bool:
    """Made of the program's number and lanes only, not of loaded data."""
    behind = functions_behind(kernel, node)
    return bool(behind & {"tl.program_id", "tl.arange"}) and "tl.load" not in behind


REWRITES = (
    Rewrite("exp2", "exp(x) as exp2(x * log2 e)", _exp2, OFTEN),
    Rewrite("reciprocal", "a division of a tile by a row's value as a multiplication", _reciprocal, SELDOM),
    Rewrite("redundant_cast", "a repeated cast dropped", _redundant_cast, SELDOM),
    Rewrite("dot_accumulate", "the accumulator handed to tl.dot", _dot_accumulate, SELDOM),
    Rewrite("narrow_index", "64-bit positions as 32-bit", _narrow_index, SELDOM),
    Rewrite("widen_index", "32-bit positions as 64-bit", _widen_index),
)
