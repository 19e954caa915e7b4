"""The rewrite that puts several rows side by side in one program."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import libcst as cst

from operators.dataflow import values_behind
from operators.rewrites.base import (
    ATOMICS,
    ELEMENTWISE,
    OFTEN,
    Pairs,
    Rewrite,
    axis_of,
    edited,
    idempotent,
    mask_of,
    pick,
    program_ids,
    with_parameter,
)
from operators.rewrites.grid import constants_of_body, loopable, relaunched
from operators.source import (
    Kernel,
    Source,
    add_argument,
    bindings,
    bracketed,
    called,
    code,
    dotted,
    expr,
    fresh,
    grid_values,
    integer,
    keyword,
    names,
    replace,
    walk,
)

_REDUCTIONS = {"tl.max", "tl.min", "tl.sum"}
_FILLED = {"tl.zeros", "tl.full"}
# Of what is the same for all rows.
_LOOPS, _HINTS = {"range", "tl.range", "tl.static_range"}, {"tl.assume", "tl.multiple_of", "tl.max_contiguous"}
_PLAIN = {"float", "min", "max", *_LOOPS, *_HINTS}
_MOST_RANK = 2  # of a tile; one more dimension is that of the rows


def _rows_per_program(source: Source, rng: random.Random) -> str | None:
    """A kernel with one row per program computes several rows as one tile.

    What depends on the row gets one dimension more, the first, in which programs used to differ.  Rows past the end
    repeat the last row and write the same values to the same place, or nothing if that would be read again.
    """
    rows, total = fresh(source, "BLOCK_ROWS"), fresh(source, "total_rows")
    ways = [
        (kernel, axis, edits)
        for kernel in source.rewritable()
        for axis in _row_axes(source, kernel)
        if (edits := _as_tile(source, kernel, axis, rows, total)) is not None
    ]
    choice = pick(rng, ways)
    if choice is None:
        return None
    kernel, axis, chosen = choice
    new = replace(kernel.node, chosen)
    new = with_parameter(with_parameter(new, total, constexpr=False), rows, constexpr=True)
    pairs: Pairs = [(kernel.node, new)]
    before = f"{rows} = {rng.choice((2, 4, 8, 16))}\n"
    for launch in source.launches_of(kernel):
        counts = cast(list[str], grid_values(source, launch))
        texts = [f"{total}={counts[axis]}", f"{rows}={rows}"]
        counts[axis] = f"triton.cdiv({counts[axis]}, {rows})"
        pairs += relaunched(launch, before, texts, f"({', '.join(counts)},)")
    return edited(source, pairs)


def _row_axes(source: Source, kernel: Kernel) -> list[int]:
    """The axes of the grid that may count rows."""
    if not loopable(source, kernel) or kernel.calls("tl.num_programs", *ATOMICS) or constants_of_body(kernel):
        return []
    axes = [axis_of(call) for call in program_ids(kernel)] if kernel.calls("tl.arange") else []
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


# --- one dimension more ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """The kind of a value: its dimensions, before the rewrite, and whether it depends on the row."""

    rank: int
    row: bool = False


_SCALAR = _Kind(0)


class _Refused(Exception):
    """The kernel does something of which is not known what it would be for several rows."""


def _plain(kind: _Kind) -> _Kind:
    """The kind of what Python or the compiler goes by: it must not depend on the row."""
    if kind.row:
        raise _Refused
    return kind


class _Again(Exception):
    """A value that a loop carries depends on the row, so it must depend on it from the beginning."""


def _as_tile(source: Source, kernel: Kernel, axis: int, rows: str, total: str) -> Pairs | None:
    """The edits of the kernel's body; None if it cannot become a tile."""
    tile = _Tile(source, kernel, axis, rows, total)
    try:
        while not tile.learn():
            pass
    except _Refused:
        return None
    return tile.pairs()


class _Tile:
    """The body of a kernel, with what is known of the values of its names."""

    def __init__(self, source: Source, kernel: Kernel, axis: int, rows: str, total: str) -> None:
        self._source, self._kernel, self._axis, self._rows = source, kernel, axis, rows
        number = f"tl.program_id({axis}) * {rows} + tl.arange(0, {rows})"
        self._position = expr(f"tl.minimum({number}, {total} - 1)")
        self._valid = "" if idempotent(kernel) else f"({number} < {total})"  # rows that store
        self._compiled = kernel.constexpr | set(bindings(source.module)) - set(kernel.bound)  # known when compiled
        self._carried: set[str] = set()  # by loops, and of each row
        self._kinds: dict[str, _Kind] = {}  # at the line that is looked at
        self._loops = 0  # around it
        self._edits: dict[int, list[Callable[[Any], Any]]] = {}
        self._nodes: dict[int, cst.CSTNode] = {}

    def learn(self) -> bool:
        """Walks the body; returns whether it came to the end.  Raises _Refused."""
        self._kinds, self._loops = {}, 0
        self._edits, self._nodes = defaultdict(list), {}
        try:
            self._block(self._kernel.body)
        except _Again:
            return False
        return True

    def pairs(self) -> Pairs:
        """The edits that the last `learn` found, each of the node as the edits below it left it."""

        def chained(edits: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
            def change(updated: Any) -> Any:
                for edit in edits:
                    updated = edit(updated)
                return updated

            return change

        return [(self._nodes[key], chained(edits)) for key, edits in self._edits.items()]

    def _edit(self, node: cst.CSTNode, change: Callable[[Any], Any]) -> None:
        self._nodes[id(node)] = node
        self._edits[id(node)].append(change)

    # --- statements --------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[cst.CSTNode]) -> None:
        for statement in statements:
            match statement:
                case cst.SimpleStatementLine(body=small) | cst.SimpleStatementSuite(body=small):
                    for part in small:
                        self._small(part)
                case cst.For(target=cst.Name(name), iter=over, body=cst.IndentedBlock(body), orelse=None):
                    if self._kind(over).row or self._kinds.get(name, _SCALAR) != _SCALAR:
                        raise _Refused
                    self._kinds[name] = _SCALAR
                    self._loops += 1
                    self._block(body)
                    self._loops -= 1
                case cst.If():
                    self._branch(statement)
                case _:
                    raise _Refused

    def _branch(self, branch: cst.If | cst.Else) -> None:
        """Decided for all rows alike: either way, names must be of one kind afterwards."""
        if isinstance(branch, cst.If) and not names(branch.test) <= self._compiled:
            _plain(self._kind(branch.test))
        before = dict(self._kinds)
        self._block(branch.body.body if isinstance(branch.body, cst.IndentedBlock) else [branch.body])
        if isinstance(branch, cst.If):
            after, self._kinds = self._kinds, before
            if branch.orelse is not None:
                self._branch(branch.orelse)
            if any(self._kinds.get(name, kind) != kind for name, kind in after.items()):
                raise _Refused
            self._kinds = {**self._kinds, **after}

    def _small(self, statement: cst.CSTNode) -> None:
        match statement:
            case cst.Assign(targets=[cst.AssignTarget(cst.Name(name))], value=value):
                self._bind(name, self._kind(value), value)
            case cst.Assign(targets=[cst.AssignTarget(cst.Tuple(left))], value=cst.Tuple(right)):
                if len(left) != len(right) or not all(isinstance(e.value, cst.Name) for e in left):
                    raise _Refused
                kinds = [self._kind(element.value) for element in right]
                for target, known, element in zip(left, kinds, right, strict=True):
                    self._bind(cast(cst.Name, target.value).value, known, element.value)
            case cst.AugAssign(target=cst.Name(name), value=value):
                target_kind, kind = self._kinds.get(name, _SCALAR), self._kind(value)
                if kind.rank > target_kind.rank:
                    raise _Refused
                self._lift(value, kind, target_kind.rank)
                self._know(name, _Kind(target_kind.rank, target_kind.row or kind.row))
            case cst.Expr(cst.SimpleString()) | cst.Pass() | cst.Return(value=None):
                pass
            case cst.Expr(cst.Call() as call):
                self._kind(call)
            case _:
                raise _Refused

    def _bind(self, name: str, kind: _Kind, value: cst.BaseExpression) -> None:
        known = self._kinds.get(name, kind) if self._loops else kind
        if known.rank != kind.rank:
            raise _Refused
        if not kind.row and (known.row or name in self._carried):
            self._spread(value)
            kind = _Kind(kind.rank, row=True)
        self._know(name, kind)

    def _know(self, name: str, kind: _Kind) -> None:
        """Notes the kind of a name; a name that a loop carries must have one kind from the beginning."""
        parameter = name in self._kernel.parameters
        before = self._kinds.get(name, _SCALAR if parameter else kind)
        if self._loops and kind.row and not before.row:
            if parameter:
                raise _Refused
            self._carried.add(name)
            raise _Again
        self._kinds[name] = kind

    def _spread(self, value: cst.BaseExpression) -> None:
        """Makes what a loop starts from a value of each row: a number, or a filled tile."""
        if called(value) in _FILLED:
            shape = cast(cst.Tuple, cast(cst.Call, value).args[0].value)
            self._edit(shape, lambda new: expr(f"({self._rows}, {', '.join(code(e.value) for e in new.elements)})"))
        elif _number(value):
            self._edit(value, lambda updated: expr(f"tl.full(({self._rows},), {code(updated)}, dtype=tl.float32)"))
        else:
            raise _Refused

    # --- values ------------------------------------------------------------------------------------------------------

    def _kind(self, node: cst.BaseExpression) -> _Kind:
        match node:
            case cst.Name(name):
                return self._kinds.get(name, _SCALAR)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return _SCALAR
            case cst.Attribute():
                return self._attribute(node)
            case cst.UnaryOperation(operator, expression):
                kind = self._kind(expression)
                return _plain(kind) if isinstance(operator, cst.Not) else kind
            case cst.BinaryOperation(left, _, right):
                return self._joined([left, right])
            case cst.BooleanOperation(left, _, right):
                return _plain(self._joined([left, right]))
            case cst.Comparison(left, comparisons):
                kind = self._joined([left, *(c.comparator for c in comparisons)])
                return _plain(kind) if len(comparisons) > 1 else kind
            case cst.IfExp(test, body, orelse) if names(test) <= self._compiled:
                return self._joined([body, orelse])
            case cst.Subscript():
                return self._subscript(node)
            case cst.Call():
                return self._call(node)
        raise _Refused

    def _joined(self, operands: Sequence[cst.BaseExpression], *, stored: bool = False) -> _Kind:
        """Returns the kind of an elementwise operation.  Triton puts what has fewer dimensions in the last ones, behind
        the row's.

        stored: the first is the place, and no place gets values of several rows.
        """
        kinds = [self._kind(operand) for operand in operands]
        rank, row = max((kind.rank for kind in kinds), default=0), any(kind.row for kind in kinds)
        if stored and row and not kinds[0].row:
            raise _Refused
        for operand, kind in zip(operands, kinds, strict=True):
            self._lift(operand, kind, rank)
        return _Kind(rank, row)

    def _lift(self, node: cst.BaseExpression, kind: _Kind, rank: int) -> None:
        if not kind.row or kind.rank == rank:
            return
        slices = _slices([":", *["None"] * (rank - kind.rank), *[":"] * kind.rank])
        self._edit(node, lambda updated: cst.Subscript(bracketed(updated), slices))

    def _attribute(self, node: cst.Attribute) -> _Kind:
        root, _, rest = dotted(node).partition(".")
        if not root or (root in self._kinds and not rest.startswith("dtype")):
            raise _Refused
        return _SCALAR

    def _subscript(self, node: cst.Subscript) -> _Kind:
        """`x[:, None]`: of each dimension one colon."""
        kind, parts = self._kind(node.value), [code(part.slice) for part in node.slice]
        if parts.count(":") != kind.rank or set(parts) - {":", "None"} or not kind.rank:
            raise _Refused
        if kind.row:
            slices = _slices([":", *parts])
            self._edit(node, lambda updated: updated.with_changes(slice=slices))
        return self._ranked(_Kind(len(parts), kind.row))

    def _ranked(self, kind: _Kind) -> _Kind:
        if kind.rank > _MOST_RANK:
            raise _Refused
        return kind

    def _call(self, call: cst.Call) -> _Kind:
        function, values = called(call), [arg.value for arg in call.args]
        if function == "tl.program_id":
            if axis_of(call) != self._axis:
                return _SCALAR
            self._edit(call, lambda _: self._position)
            return _Kind(0, row=True)
        if function == "tl.arange":
            _plain(self._joined(values))
            return _Kind(1)
        if function in _FILLED and values and isinstance(values[0], (cst.Tuple, cst.List)):
            _plain(self._joined(values[1:]))
            return self._ranked(_Kind(len(values[0].elements)))
        if function in _REDUCTIONS:
            return self._reduced(call)
        if function == "tl.store":
            return self._stored(call)
        if function == "tl.cdiv" or _elementwise(self._source, function):
            return self._joined(values)
        if function in _PLAIN:
            return _plain(self._joined(values))
        if _is_cast(call):
            return self._kind(cast(cst.Attribute, call.func).value)
        raise _Refused

    def _stored(self, call: cst.Call) -> _Kind:
        kind = self._joined([arg.value for arg in call.args], stored=True)
        if kind.row and self._valid:
            valid = self._valid + f"[:{', None' * kind.rank}]" * bool(kind.rank)
            self._edit(call, lambda updated: _masked(updated, valid))
        return kind

    def _reduced(self, call: cst.Call) -> _Kind:
        """A sum, or a greatest or least element, along one axis."""
        if not 1 <= len(call.args) <= 2:
            raise _Refused
        given = keyword(call, "axis") or (
            call.args[1] if len(call.args) == 2 and call.args[1].keyword is None else None
        )
        kind, axis = self._kind(call.args[0].value), integer(given.value) if given else 0
        if axis is None or (given is None and (len(call.args) > 1 or kind.rank > 1)) or kind.rank < 1:
            raise _Refused
        if kind.row:
            self._edit(call, lambda updated: updated.with_changes(args=_arguments(updated.args[0], f"axis={axis + 1}")))
        return _Kind(kind.rank - 1, kind.row)


def _masked(store: cst.Call, valid: str) -> cst.Call:
    """The store, limited to elements for which `valid` holds too."""
    mask = mask_of(store)
    if mask is None:
        return add_argument(store, f"mask={valid}")
    both = expr(f"({code(mask.value)}) & {valid}")
    return store.with_changes(args=[arg.with_changes(value=both) if arg is mask else arg for arg in store.args])


def _slices(parts: Sequence[str]) -> Sequence[cst.SubscriptElement]:
    return cast(cst.Subscript, expr(f"f[{', '.join(parts)}]")).slice


def _arguments(first: cst.Arg, text: str) -> Sequence[cst.Arg]:
    return cast(cst.Call, expr(f"f({code(first.value)}, {text})")).args


def _elementwise(source: Source, function: str) -> bool:
    """Its result at one element depends on its arguments there; helpers of the source are looked into."""
    if function in ELEMENTWISE or function.startswith(
        ("tl.extra.cuda.libdevice.", "tl.extra.libdevice.", "libdevice.")
    ):
        return True
    if function not in source.kernels:
        return False
    for node in walk(source.kernels[function].node.body):
        if isinstance(node, (cst.For, cst.While, cst.If, cst.Subscript)):
            return False
        if isinstance(node, cst.Call) and not _is_cast(node):
            inner = called(node)
            if inner in ("tl.load", function) or not _elementwise(source, inner):
                return False
    return True


def _is_cast(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"


def _number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _number(node.expression)
    return isinstance(node, cst.Float) or called(node) == "float"


REWRITES = (Rewrite("rows_per_program", "several rows per program, side by side as a tile", _rows_per_program, OFTEN),)
