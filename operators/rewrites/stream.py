"""The rewrite that walks along a row in tiles instead of holding it at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import libcst as cst

from operators.dataflow import assigned, pointers
from operators.genes import get_genes
from operators.rewrites.base import ATOMICS, ELEMENTWISE, Pairs, Rewrite, edited, shuffled, with_body
from operators.rewrites.reduction import axis_of_reduction, only_lanes, only_launch
from operators.source import (
    Kernel,
    LaunchSite,
    Source,
    called,
    code,
    dotted,
    expr,
    keyword,
    names,
    replace,
    stmts,
    walk,
)

_START = {"tl.max": '-float("inf")', "tl.min": 'float("inf")', "tl.sum": "0.0"}
_MERGE = {"tl.max": "tl.maximum", "tl.min": "tl.minimum", "tl.sum": "+"}

Shape = tuple[str, ...]


class _Unknown(Exception):
    """The kernel is not of the form that can be streamed."""


def _stream(source: Source, rng: random.Random) -> str | None:
    """A kernel that holds a whole row (BLOCK >= N) in one tile walks over it in tiles instead.

    Straight-line code; every access along the row is masked by `lanes < N`.  Each reduction becomes a loop that
    recomputes what it reduces, in the order of their dependencies; stores move into the last loop.  Lanes past N do not
    contribute: the kernel is right for every N, so they cannot have before, when their number was BLOCK - N.
    """
    sites = [(k, b, n) for k in source.rewritable() if (n := only_launch(source, k)) for b in _row_blocks(source, k, n)]
    for kernel, block, launch in shuffled(rng, sites):
        streamer = _Streamer(kernel, block)
        try:
            body = streamer.stream()
        except _Unknown:
            continue
        if not _covers(source, launch, block, streamer.size):
            continue
        tile = rng.choice((32, 64, 128)) if len(kernel.calls("tl.arange")) > 1 else rng.choice((256, 512, 1024, 2048))
        value = launch.arguments[block].value
        return edited(source, [(kernel.node, with_body(kernel.node, body)), (value, cst.Integer(str(tile)))])
    return None


def _covers(source: Source, launch: LaunchSite, block: str, size: str) -> bool:
    """The host makes the block the next power of two of the size, or larger, up to the most that it can take."""
    if size not in launch.arguments:
        return False
    value = source.resolve(launch.arguments[block].value, launch.host)
    whole = f"triton.next_power_of_2({code(launch.arguments[size].value)})"
    if value is None:
        return False
    return code(value) == whole or (
        called(value) in ("max", "min") and whole in {code(a.value) for a in cast(cst.Call, value).args}
    )


def _row_blocks(source: Source, kernel: Kernel, launch: LaunchSite) -> list[str]:
    """Blocks that the host chooses to cover a whole row: not a literal."""
    genes = [g for g in get_genes(source.text) if g.value and g.name.startswith(f"{kernel.name}.")]
    names_ = {g.name.rpartition(".")[2] for g in genes}
    return [p for p in kernel.parameters if p in kernel.constexpr and p in launch.arguments and p not in names_]


@dataclass
class _Streamer:
    """Turns the straight-line body of a kernel into loops along one block."""

    kernel: Kernel
    block: str
    shapes: dict[str, Shape] = field(default_factory=dict)
    wide: set[str] = field(default_factory=set)  # names that vary along the block
    wide_lines: list[tuple[str, cst.BaseStatement]] = field(default_factory=list)
    waiting: list[tuple[str, str, cst.BaseExpression]] = field(default_factory=list)  # (name, reduction, what)
    held: list[cst.BaseStatement] = field(default_factory=list)  # narrow lines that wait for the reductions
    held_names: set[str] = field(default_factory=set)
    stores: list[cst.BaseStatement] = field(default_factory=list)
    size: str = ""
    out: list[cst.BaseStatement] = field(default_factory=list)

    def stream(self) -> list[cst.BaseStatement]:
        self._check()
        for line in self.kernel.body:
            self._take(cast(cst.SimpleStatementLine, line))
        if not self.waiting and not any(isinstance(n, cst.For) for n in self.out):
            raise _Unknown("nothing is reduced along the block")
        self._flush()
        if self.stores:
            needed = self._needed([n for s in self.stores for n in names(s)])
            self.out.append(self._loop([*needed, *self.stores]))
        return self.out

    def _check(self) -> None:
        kernel = self.kernel
        lines = [s for s in kernel.body if not (isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1)]
        moved = [dotted(n.target) for n in walk(kernel.node.body) if isinstance(n, cst.AugAssign)]
        once = all(len(v) - moved.count(n) == 1 for n, v in kernel.bound.items())
        if (
            lines
            or not once
            or "row_start" in kernel.bound
            or kernel.calls(*ATOMICS)
            or not only_lanes(kernel, self.block)
        ):
            raise _Unknown("not straight-line code that binds each name once")
        if pointers(kernel, "tl.load") & pointers(kernel, "tl.store") or "float64" in code(kernel.node):
            raise _Unknown("in place, or in a precision that float32 sums would lose")

    def _take(self, line: cst.SimpleStatementLine) -> None:
        bound = assigned(line)
        if bound is not None:
            name, value = bound
            value = self._without_reductions(value)
            self.shapes[name] = self._shape(value)
            new = line.with_changes(body=[line.body[0].with_changes(value=value)])
            if self._varies(value):
                self._note_mask(value)
                self.wide.add(name)
                self.wide_lines.append((name, new))
            else:
                self._narrow(new, {name}, value)
        elif isinstance(line.body[0], cst.Expr) and called(line.body[0].value) == "tl.store":
            store = self._without_reductions(line.body[0].value)
            new = line.with_changes(body=[line.body[0].with_changes(value=store)])
            self._shape(store)
            if self._varies(store):
                self._masked(cast(cst.Call, store))
                self.stores.append(new)
            else:
                self._narrow(new, set(), store)
        elif isinstance(line.body[0], cst.AugAssign):
            self._move(line, line.body[0])
        elif not (isinstance(line.body[0], cst.Expr) and isinstance(line.body[0].value, cst.SimpleString)):
            raise _Unknown(f"a statement of another kind: {code(line)}")

    def _move(self, line: cst.SimpleStatementLine, step: cst.AugAssign) -> None:
        """`x_ptr += row * stride`, as long as nothing that runs later was written for the old value."""
        name = dotted(step.target)
        used = {n for _, wide in self.wide_lines for n in names(wide)}
        if not name or self.waiting or self.held or self.stores or name in used or self._varies(step):
            raise _Unknown("a name that changes after it was used")
        self._shape(step.value)
        self.out.append(line)

    def _narrow(self, line: cst.BaseStatement, bound: set[str], value: cst.BaseExpression) -> None:
        """A line that is the same for the whole row: now, or after the reductions it needs."""
        if any(called(n) == "tl.load" for n in walk(value)) and self.stores:
            raise _Unknown("a load after a store")
        if names(value) & (self.held_names | {w[0] for w in self.waiting}) or called(value) == "tl.store":
            self.held.append(line)
            self.held_names |= bound
        else:
            self.out.append(line)

    def _without_reductions(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """The expression with each reduction along the block replaced by a name, and the reduction put in the queue."""
        pairs: Pairs = []
        for node in walk(value):
            if called(node) in _START and self._varies(node):
                call = cast(cst.Call, node)
                what = call.args[0].value  # it varies, so there is one
                if any(called(n) in _START for n in walk(what)) or len(call.args) > 2:
                    raise _Unknown("a reduction of a reduction")
                pairs.append((node, cst.Name(self._reduce(call, what))))
        return cast(cst.BaseExpression, replace(value, pairs)) if pairs else value

    def _reduce(self, call: cst.Call, what: cst.BaseExpression) -> str:
        shape, axis = self._shape(what), axis_of_reduction(call)
        if axis is None or not 0 <= axis < len(shape) or shape[axis] != self.block:
            raise _Unknown("a reduction along another axis")
        if not self._floating(what):
            raise _Unknown("not known to be floating point")
        behind = names(what) | {n for line in self._needed(list(names(what))) for n in names(line)}
        if behind & (self.held_names | {w[0] for w in self.waiting}):
            self._flush()
        function = called(call)
        name = f"row_{function.removeprefix('tl.')}"
        taken = set(self.shapes) | set(self.kernel.parameters)
        while name in taken:
            name += "_"
        self.shapes[name] = shape[:axis] + shape[axis + 1 :]
        self.waiting.append((name, function, call))
        return name

    def _floating(self, what: cst.BaseExpression) -> bool:
        lines = self._needed(list(names(what)))
        nodes = [n for part in (what, *lines) for n in walk(part)]
        return any(
            isinstance(n, cst.Float) or called(n) in ("float", "tl.exp") or dotted(n) == "tl.float32" for n in nodes
        )

    def _flush(self) -> None:
        """The loop that computes the waiting reductions, then the lines that waited for them."""
        if self.waiting:
            lines: list[cst.BaseStatement] = []
            needed = self._needed([n for _, _, what in self.waiting for n in names(what)])
            for name, function, call in self.waiting:
                shape = self.shapes[name]
                start = _START[function]
                if shape:
                    lengths = shape[0] + "," if len(shape) == 1 else ", ".join(shape)
                    start = f"tl.full(({lengths}), {start}, dtype=tl.float32)"
                merge = _MERGE[function]
                step = f"{name} + {code(call)}" if merge == "+" else f"{merge}({name}, {code(call)})"
                self.out += stmts(f"{name} = {start}\n")
                lines += stmts(f"{name} = {step}\n")
            self.out.append(self._loop([*needed, *lines]))
        self.out += self.held
        self.waiting, self.held, self.held_names = [], [], set()

    def _needed(self, wanted: list[str]) -> list[cst.BaseStatement]:
        """The lines along the row that these names need, in order."""
        reached = set(wanted)
        chosen: list[cst.BaseStatement] = []
        for name, line in reversed(self.wide_lines):
            if name in reached:
                reached |= names(line)
                chosen.append(line)
        return chosen[::-1]

    def _loop(self, lines: Sequence[cst.BaseStatement]) -> cst.BaseStatement:
        if not self.size:
            raise _Unknown("no mask says how long the row is")
        lanes = expr(f"row_start + tl.arange(0, {self.block})")
        inner = []
        for line in lines:
            pairs: Pairs = []
            for node in walk(line):
                if called(node) == "tl.arange" and self.block in names(node):
                    alone = (a := assigned(line)) is not None and a[1] is node
                    pairs.append((node, lanes if alone else expr(f"({code(lanes)})")))
            inner.append(replace(line, pairs).with_changes(leading_lines=[]))
        head = cast(cst.For, cst.parse_statement(f"for row_start in range(0, {self.size}, {self.block}):\n    pass\n"))
        return head.with_changes(body=cst.IndentedBlock(inner))

    # --- what varies, and in which shape

    def _varies(self, node: cst.CSTNode) -> bool:
        lanes = any(called(n) == "tl.arange" and self.block in names(n) for n in walk(node))
        return lanes or bool(names(node) & self.wide)

    def _note_mask(self, value: cst.BaseExpression) -> None:
        for node in walk(value):
            if called(node) == "tl.load":
                self._masked(cast(cst.Call, node))

    def _masked(self, call: cst.Call) -> None:
        """An access along the row has a mask, and the mask holds `lanes < N`."""
        if not call.args or not self._varies(call.args[0]):
            return
        mask = keyword(call, "mask")
        sizes = self._sizes(mask.value) if mask is not None else set()
        if len(sizes) != 1 or (self.size and sizes != {self.size}):
            raise _Unknown("an access that is not masked by the size of the row")
        self.size = next(iter(sizes))

    def _sizes(self, mask: cst.BaseExpression) -> set[str]:
        """N of every `lanes < N` that the mask is a conjunction of."""
        lines = {n: assigned(line) for n, line in self.wide_lines}
        if isinstance(mask, cst.Subscript):
            return self._sizes(mask.value)
        if isinstance(mask, cst.Name) and lines.get(mask.value):
            return self._sizes(cast(Any, lines[mask.value])[1])
        if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
            return self._sizes(mask.left) | self._sizes(mask.right)
        if isinstance(mask, cst.Comparison) and len(mask.comparisons) == 1:
            target = mask.comparisons[0]
            left = mask.left.value if isinstance(mask.left, cst.Subscript) else mask.left
            if isinstance(left, cst.Name) and lines.get(left.value):
                left = cast(Any, lines[left.value])[1]
            bound = dotted(target.comparator)
            ours = called(left) == "tl.arange" and self.block in names(left)
            if ours and isinstance(target.operator, cst.LessThan) and bound in self.kernel.parameters:
                return {bound}
        return set()

    def _shape(self, node: cst.BaseExpression) -> Shape:
        """The shape of a value as names of blocks; raises _Unknown for what is not elementwise."""
        match node:
            case cst.Name():
                return self.shapes.get(node.value, ())
            case cst.Integer() | cst.Float() | cst.SimpleString() | cst.Attribute():
                return ()
            case cst.BinaryOperation() | cst.BooleanOperation():
                return _broadcast(self._shape(node.left), self._shape(node.right))
            case cst.UnaryOperation():
                return self._shape(node.expression)
            case cst.Comparison():
                return _broadcast(self._shape(node.left), *(self._shape(c.comparator) for c in node.comparisons))
            case cst.Subscript():
                return _indexed(self._shape(node.value), node)
            case cst.Call():
                return self._call_shape(node)
        raise _Unknown(f"no shape is known for {code(node)}")

    def _call_shape(self, call: cst.Call) -> Shape:
        function = called(call)
        if function == "tl.arange" and len(call.args) == 2:
            return (dotted(call.args[1].value) or code(call.args[1].value),)
        if function in ("tl.program_id", "tl.num_programs", "tl.cdiv"):
            return ()
        if function == "tl.store" or function in ELEMENTWISE | {"float"}:
            return _broadcast(*(self._shape(a.value) for a in call.args))
        if (
            function in _START
            and call.args
            and not self._varies(call)
            and (axis := axis_of_reduction(call)) is not None
        ):
            shape = self._shape(call.args[0].value)
            return shape[:axis] + shape[axis + 1 :]
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to":
            return self._shape(call.func.value)
        raise _Unknown(f"{function or 'a call'} is not elementwise")


def _broadcast(*shapes: Shape) -> Shape:
    longest: Shape = max(shapes, key=len, default=())
    out = list(longest)
    for shape in shapes:
        if shape and len(shape) != len(longest):
            raise _Unknown("shapes of different length")
        for i, n in enumerate(shape):
            if out[i] == "1":
                out[i] = n
            elif n not in ("1", out[i]):
                raise _Unknown(f"shapes {shapes} do not fit")
    return tuple(out)


def _indexed(shape: Shape, node: cst.Subscript) -> Shape:
    """The shape of `x[:, None]`."""
    rest, out = list(shape), []
    for element in node.slice:
        index = element.slice
        if isinstance(index, cst.Index) and dotted(index.value) == "None":
            out.append("1")
        elif isinstance(index, cst.Slice) and not (index.lower or index.upper or index.step) and rest:
            out.append(rest.pop(0))
        else:
            raise _Unknown("an index other than `:` and `None`")
    return (*out, *rest)


REWRITES = (Rewrite("stream_reduction", "a row handled tile by tile instead of at once", _stream),)
