"""Defines rewrites, and questions about a kernel that several families of them share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import libcst as cst

from evo.core.records import candidate_id
from operators.dataflow import pointers
from operators.source import (
    Kernel,
    Source,
    add_argument,
    called,
    dotted,
    expr,
    integer,
    keyword,
    parse,
    walk,
)  # fmt: skip

SELDOM, OFTEN = 0.4, 3.0  # weights

T = TypeVar("T")
Pairs = list[tuple[cst.CSTNode, Any]]


@dataclass(frozen=True)
class Rewrite:
    """One structural change.  `edit` gives the new source, or None if its precondition does not hold.

    weight: how often it is tried, over the others.  The weights come from a search over 169 kernels on an H200
    (runs/reference/tritonbench-g).  There the best candidate became at least 1.03 times as fast by 61 of 1,085
    candidates of the rules now tried OFTEN.  It did by 4 of 1,199 of those now tried SELDOM, and by 73 of 2,230 of the
    others.
    """

    name: str
    description: str
    edit: Callable[[Source, random.Random], str | None]
    weight: float = 1.0

    def apply(self, source: str, rng: random.Random) -> str | None:
        """The rewritten source; None if the rewrite does not apply or would change nothing."""
        parsed = parse(source)
        if parsed is None or not _imports_triton(parsed):
            return None
        new = self.edit(parsed, rng)
        if new is None or parse(new) is None or candidate_id(new) == candidate_id(source):
            return None
        return new


def _imports_triton(source: Source) -> bool:
    """`triton` and `tl` are what rewrites write; a source that names them otherwise is left alone."""
    imported = set()
    for node in walk(source.module):
        if isinstance(node, (cst.Import, cst.ImportFrom)) and not isinstance(node.names, cst.ImportStar):
            package = f"{dotted(node.module)}." if isinstance(node, cst.ImportFrom) and node.module else ""
            imported |= {(package + dotted(a.name), dotted(a.asname.name) if a.asname else "") for a in node.names}
    return {("triton", ""), ("triton.language", "tl")} <= imported


def edited(source: Source, pairs: Pairs) -> str:
    """The text of the source after replacements."""
    return source.replaced(pairs)


def pick(rng: random.Random, items: Sequence[T]) -> T | None:
    return rng.choice(items) if items else None


def shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    return rng.sample(list(items), len(items))


# --- kernels ---------------------------------------------------------------------------------------------------------


def axis_of(call: cst.Call) -> int | None:
    """The axis of `tl.program_id(0)` or `tl.num_programs(axis=1)`."""
    return integer(call.args[0].value) if len(call.args) == 1 else None


def program_ids(kernel: Kernel) -> list[cst.Call]:
    return kernel.calls("tl.program_id", "tl.num_programs")


def helpers_ask_position(source: Source, kernel: Kernel) -> bool:
    """A `@triton.jit` helper that the kernel calls reads the program's position itself."""
    helpers = [source.kernels[called(c)] for c in walk(kernel.node.body) if called(c) in source.kernels]
    return any(program_ids(h) for h in helpers)


def extendable(kernel: Kernel) -> bool:
    """A parameter can be added at the end of the signature."""
    p = kernel.node.params
    return not p.kwonly_params and isinstance(p.star_arg, cst.MaybeSentinel) and not p.star_kwarg


def with_parameter(function: cst.FunctionDef, name: str, *, constexpr: bool) -> cst.FunctionDef:
    """The kernel with one more parameter at the end; behind one with a default it has one too, which no launch uses."""
    annotation = cst.Annotation(expr("tl.constexpr")) if constexpr else None
    params = list(function.params.params)
    default = cst.Integer("1") if params and params[-1].default is not None else None
    new = cst.Param(cst.Name(name), annotation=annotation, default=default)
    if params:  # keeps the line breaks of a signature over several lines
        last = params[-1]
        new = new.with_changes(comma=last.comma, whitespace_after_param=last.whitespace_after_param)
        comma = params[-2].comma if isinstance(last.comma, cst.Comma) and len(params) > 1 else _COMMA
        params[-1] = last.with_changes(comma=comma, whitespace_after_param=cst.SimpleWhitespace(""))
    return function.with_changes(params=function.params.with_changes(params=[*params, new]))


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def with_body(function: cst.FunctionDef, body: Sequence[cst.BaseStatement]) -> cst.FunctionDef:
    return function.with_changes(body=function.body.with_changes(body=body))


def with_arguments(*texts: str, grid: str | None = None) -> Callable[[cst.Call], cst.Call]:
    """An edit of a launch: more keyword arguments, and another grid."""

    def change(call: cst.Call) -> cst.Call:
        for text in texts:
            call = add_argument(call, text)
        if grid is not None:
            subscript = cast(cst.Subscript, call.func)
            slices = [cst.SubscriptElement(cst.Index(expr(grid)))]
            call = call.with_changes(func=subscript.with_changes(slice=slices))
        return call

    return change


ATOMICS = tuple(f"tl.atomic_{k}" for k in ("add", "and", "cas", "max", "min", "or", "xchg", "xor"))


def idempotent(kernel: Kernel) -> bool:
    """Executing a program twice leaves what executing it once does."""
    return not kernel.calls(*ATOMICS) and pointers(kernel, "tl.load").isdisjoint(pointers(kernel, "tl.store"))


def mask_of(store: cst.Call) -> cst.Arg | None:
    """The mask of a `tl.store`."""
    third = store.args[2] if len(store.args) > 2 and store.args[2].keyword is None else None
    return keyword(store, "mask") or third


# Functions of triton.language whose result at one element depends on their arguments at that element only.
_ELEMENTWISE = {
    "tl.load", "tl.exp", "tl.exp2", "tl.log", "tl.log2", "tl.sqrt", "tl.rsqrt", "tl.sin", "tl.cos", "tl.abs",
    "tl.where", "tl.maximum", "tl.minimum", "tl.sigmoid", "tl.erf", "tl.floor", "tl.ceil", "tl.fma", "tl.cast",
}  # fmt: skip
ELEMENTWISE = _ELEMENTWISE | {n.replace("tl.", "tl.math.") for n in _ELEMENTWISE - {"tl.load", "tl.where", "tl.cast"}}
