"""Rewrites of reductions over a row: whole row at once, tile by tile, maximum and sum in one pass."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import libcst as cst

from operators.genes import get_genes
from operators.rewrites.base import ATOMICS, Pairs, Rewrite, assigned, edited, pick, pointers, shuffled, with_body
from operators.source import (
    Kernel, Launch, Source, bindings, called, code, dotted, expr, fresh, integer, keyword, names, replace, stmts, walk,
)  # fmt: skip

# --- one-dimensional facts -------------------------------------------------------------------------------------------


def _loop_bounds(loop: cst.CSTNode) -> tuple[str, str, str] | None:
    """(variable, size, block) of `for variable in range(0, size, block)`."""
    if not isinstance(loop, cst.For) or called(loop.iter) not in ("range", "tl.range") or loop.orelse is not None:
        return None
    args = [a.value for a in cast(cst.Call, loop.iter).args if a.keyword is None]
    if len(args) != 3 or integer(args[0]) != 0 or not all(isinstance(a, cst.Name) for a in (loop.target, *args[1:])):
        return None
    return dotted(loop.target), dotted(args[1]), dotted(args[2])


def _axis(call: cst.Call) -> int | None:
    """The axis of a reduction; 0 where it is not said."""
    arg = keyword(call, "axis") or (call.args[1] if len(call.args) == 2 else None)
    return integer(arg.value) if arg is not None else 0


def _only_launch(source: Source, kernel: Kernel) -> Launch | None:
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


def _whole_launch(source: Source, kernel: Kernel) -> Launch | None:
    """The launch of a kernel whose loops all step through one size by one block, if the rewrite is sound for it."""
    launch = _only_launch(source, kernel)
    loops = [n for n in walk(kernel.node.body) if isinstance(n, (cst.For, cst.While))]
    bounds = [_loop_bounds(n) for n in loops]
    nested = any(n not in kernel.body for n in loops)
    if launch is None or not loops or nested or None in bounds or kernel.calls("tl.dot"):
        return None
    if len({b[1:] for b in bounds if b}) != 1 or bounds[0] is None:
        return None
    start, size, block = bounds[0]
    if block not in kernel.constexpr or not {size, block} <= set(launch.arguments) or size in bindings_of_body(kernel):
        return None
    if not all(s in (cst.SimpleStatementLine, cst.For) for s in map(type, kernel.body)) or kernel.calls(*ATOMICS):
        return None
    for loop in loops:
        assert isinstance(loop, cst.For)
        if any(not isinstance(s, cst.SimpleStatementLine) for s in loop.body.body):
            return None
        accesses = [n for n in walk(loop.body) if called(n) in ("tl.load", "tl.store")]
        if any(keyword(cast(cst.Call, a), "mask") is None for a in accesses):
            return None
    outside = [s for s in kernel.body if not isinstance(s, cst.For)]
    starts = {b[0] for b in bounds if b}
    if any(starts & names(s) for s in outside) or not _only_lanes(kernel, block):
        return None
    given = launch.arguments[block].value
    grid = source.resolve(launch.grid, launch.host)
    free = isinstance(source.resolve(given, launch.host), cst.Integer) and grid is not None
    return launch if free and not (names(given) & names(cast(cst.CSTNode, grid))) else None


def bindings_of_body(kernel: Kernel) -> set[str]:
    """Names the body itself binds (a parameter that it binds again among them)."""
    body = cst.FunctionDef(cst.Name("body"), cst.Parameters(), kernel.node.body)
    return set(bindings(body))


def _only_lanes(kernel: Kernel, block: str) -> bool:
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

    Loads are repeated only while nothing has been stored to where loads read from.  A load that differs from an earlier
    one in `other` alone is kept: masked lanes matter.
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

    Each step rescales the sum by exp(old m - new m) and adds exp(x - new m).  Where all of x so far is -inf, the shift
    is 0 so that no -inf - -inf arises: the sum stays 0, as it is for such a tile in two passes.
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
    for first, second in zip(loops, loops[1:], strict=False):
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
        if total and plain and [n for n, _ in starts] in ([], [total]) and largest[0] not in _prefix_names(first):
            yield cast(cst.For, first), cast(cst.For, second), between, largest[0], total, largest[1]


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
    x = dotted(inner.args[0].value)
    return (target, x) if x and target and len(inner.args) <= 2 and _axis(inner) == 0 else None


def _running_sum(line: cst.BaseSmallStatement, largest: str, x: str) -> str | None:
    """s of `s += tl.sum(tl.exp(x - m), axis=0)`."""
    if not isinstance(line, cst.AugAssign) or not isinstance(line.operator, cst.AddAssign):
        return None
    value = line.value
    if called(value) != "tl.sum" or _axis(cast(cst.Call, value)) != 0 or len(cast(cst.Call, value).args) > 2:
        return None
    return dotted(line.target) if code(cast(cst.Call, value).args[0].value) == f"tl.exp({x} - {largest})" else None


# --- tile by tile ----------------------------------------------------------------------------------------------------

_START = {"tl.max": '-float("inf")', "tl.min": 'float("inf")', "tl.sum": "0.0"}
_MERGE = {"tl.max": "tl.maximum", "tl.min": "tl.minimum", "tl.sum": "+"}
_ELEMENTWISE = {
    "tl.load", "tl.exp", "tl.exp2", "tl.log", "tl.log2", "tl.sqrt", "tl.rsqrt", "tl.sin", "tl.cos", "tl.abs", "tl.where",
    "tl.maximum", "tl.minimum", "tl.sigmoid", "tl.erf", "tl.fma", "tl.cast", "float",
}  # fmt: skip

Shape = tuple[str, ...]


class _Unknown(Exception):
    """The kernel is not of the form that can be streamed."""


def _stream(source: Source, rng: random.Random) -> str | None:
    """A kernel that holds a whole row (BLOCK >= N) in one tile walks over it in tiles instead.

    Straight-line code; every access along the row is masked by `lanes < N`.  Each reduction becomes a loop that
    recomputes what it reduces, in the order of their dependencies; stores move into the last loop.  Lanes past N do not
    contribute: the kernel is right for every N, so they cannot have before, when their number was BLOCK - N.
    """
    sites = [
        (k, b, n) for k in source.rewritable() if (n := _only_launch(source, k)) for b in _row_blocks(source, k, n)
    ]
    for kernel, block, launch in shuffled(rng, sites):
        try:
            body = _Streamer(kernel, block).stream()
        except _Unknown:
            continue
        tile = rng.choice((32, 64, 128)) if len(kernel.calls("tl.arange")) > 1 else rng.choice((256, 512, 1024, 2048))
        value = launch.arguments[block].value
        return edited(source, [(kernel.node, with_body(kernel.node, body)), (value, cst.Integer(str(tile)))])
    return None


def _row_blocks(source: Source, kernel: Kernel, launch: Launch) -> list[str]:
    """Blocks that the host chooses to cover a whole row: not a literal."""
    names_ = {n.name.rpartition(".")[2] for n in get_genes(source.text) if n.name.startswith(f"{kernel.name}.")}
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
        if not self.size or not any(isinstance(n, cst.For) for n in self.out) and not self.waiting:
            raise _Unknown("nothing is reduced along the block")
        self._flush()
        if self.stores:
            needed = self._needed([n for s in self.stores for n in names(s)])
            self.out.append(self._loop([*needed, *self.stores]))
        return self.out

    def _check(self) -> None:
        kernel = self.kernel
        lines = [s for s in kernel.body if not (isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1)]
        once = all(len(v) == 1 for v in bindings(kernel.node).values())
        if lines or not once or "row_start" in bindings(kernel.node) or kernel.calls(*ATOMICS) or not _only_lanes(kernel, self.block):
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
        elif not (isinstance(line.body[0], cst.Expr) and isinstance(line.body[0].value, cst.SimpleString)):
            raise _Unknown(f"a statement of another kind: {code(line)}")

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
                what = call.args[0].value
                if any(called(n) in _START for n in walk(what)) or len(call.args) > 2:
                    raise _Unknown("a reduction of a reduction")
                pairs.append((node, cst.Name(self._reduce(call, what))))
        return cast(cst.BaseExpression, replace(value, pairs)) if pairs else value

    def _reduce(self, call: cst.Call, what: cst.BaseExpression) -> str:
        shape, axis = self._shape(what), _axis(call)
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
        if not self._varies(call.args[0]):
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
        if function == "tl.arange":
            return (dotted(call.args[1].value) or code(call.args[1].value),)
        if function in ("tl.program_id", "tl.num_programs", "tl.cdiv"):
            return ()
        if function == "tl.store" or function in _ELEMENTWISE:
            return _broadcast(*(self._shape(a.value) for a in call.args))
        if function in _START and not self._varies(call) and (axis := _axis(call)) is not None:
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


REWRITES = (
    Rewrite("whole_row", "a row handled in one masked tile instead of a loop, its loads made once", _whole_row),
    Rewrite("online_softmax", "maximum and sum of exponentials in one pass", _online_softmax),
    Rewrite("stream_reduction", "a row handled tile by tile instead of at once", _stream),
)
