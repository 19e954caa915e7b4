"""Parses a candidate's source: kernels, host functions, launches, and how names are bound.

Everything here is syntax (libcst); nothing is imported or run.  All nodes belong to one parsed tree.  So an edit
replaces a node by identity and leaves every other character of the source as it was.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, cast

import libcst as cst

# Keywords of a launch that are options of the compiler and not parameters of the kernel.
OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_cooperative_grid"})

_BLANK = cst.Module([])


def code(node: cst.CSTNode) -> str:
    """The text of a node, without what surrounds it."""
    return _BLANK.code_for_node(node).strip()


def expr(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


def stmts(text: str) -> list[cst.BaseStatement]:
    """The statements in `text`."""
    return list(cast(Sequence[cst.BaseStatement], cst.parse_module(text).body))


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of a chain of names, "" of anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr.value}" if head else ""
    return ""


def called(node: cst.CSTNode) -> str:
    """The dotted name of the function that `node` calls, "" if it is not such a call."""
    return dotted(node.func) if isinstance(node, cst.Call) else ""


_LAYOUT = re.compile(
    r"whitespace|lines|comma|semicolon|par$|bracket$|brace$|equal$|header|footer|indent|dot$|star$|^first$"
)


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind) if not _LAYOUT.search(f.name))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes directly below, without layout (libcst's own `children` visits spaces and commas: ten times slower)."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, cst.CSTNode))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(list(children(node)))


def names(node: cst.CSTNode) -> set[str]:
    """Returns every name that occurs in `node` as a variable (no attribute names, no keywords of calls)."""
    found: set[str] = set()
    if isinstance(node, cst.Name):
        found.add(node.value)
    elif isinstance(node, (cst.Attribute, cst.Arg)):
        found |= names(node.value)
    else:
        for child in children(node):
            found |= names(child)
    return found


def integer(node: cst.CSTNode | None) -> int | None:
    """The value of an integer literal, None of anything else."""
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


class _Replacer(cst.CSTTransformer):
    def __init__(self, table: Mapping[int, Any]) -> None:
        super().__init__()
        self.table = table

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if id(original_node) not in self.table:
            return super().on_leave(original_node, updated_node)
        new = self.table[id(original_node)]
        return new(updated_node) if callable(new) else new


def replace(tree: Any, pairs: Sequence[tuple[cst.CSTNode, Any]]) -> Any:
    """The tree with nodes replaced by identity.

    The second of a pair is a node, a list of statements (for a statement) or `cst.RemoveFromParent()`.  It may also be
    a function of the node as it is after the replacements below it.
    """
    table = {id(old): cst.FlattenSentinel(new) if isinstance(new, list) else new for old, new in pairs}
    return tree.visit(_Replacer(table))


def bracketed(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in parentheses, unless it can stand as an operand as it is."""
    atoms = (cst.Name, cst.Integer, cst.Float, cst.Call, cst.Attribute, cst.Subscript)
    if isinstance(node, atoms) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def add_argument(call: cst.Call, text: str) -> cst.Call:
    """The call with the argument `text` (e.g. "num_warps=8") at its end."""
    new = cast(cst.Call, expr(f"f({text})")).args[0]
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    if isinstance(last.comma, cst.Comma):  # a trailing comma moves behind the new argument
        return call.with_changes(
            args=[*call.args[:-1], last.with_changes(comma=_COMMA), new.with_changes(comma=last.comma)]
        )
    new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
    last = last.with_changes(comma=_COMMA, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*call.args[:-1], last, new])


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def drop_arguments(call: cst.Call, keywords: set[str]) -> cst.Call:
    """The call without the keyword arguments named in `keywords`."""
    kept = [a for a in call.args if a.keyword is None or a.keyword.value not in keywords]
    if kept and len(kept) < len(call.args):
        kept[-1] = kept[-1].with_changes(
            comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
        )
    return call.with_changes(args=kept)


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    return next((a for a in call.args if a.keyword is not None and a.keyword.value == name), None)


_MAX_CHAIN = 4  # names that stand for a name

Binding = cst.BaseExpression | None  # None: bound by something other than a plain value (loop, augmented, unpacked)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A module-level `@triton.jit` function."""

    node: cst.FunctionDef
    name: str
    parameters: tuple[str, ...]
    constexpr: frozenset[str]
    defaults: frozenset[str]
    decorators: tuple[str, ...]  # dotted names, top to bottom

    @property
    def body(self) -> Sequence[cst.BaseStatement]:
        """Its statements, without a `return` at the end, which changes nothing."""
        body = cast(Sequence[cst.BaseStatement], self.node.body.body)
        return body[:-1] if body and _is_return(body[-1]) else body

    @cached_property
    def bound(self) -> dict[str, list[Binding]]:
        """The values bound to each of its names."""
        return bindings(self.node)

    @cached_property
    def _calls(self) -> list[cst.Call]:
        return [n for n in walk(self.node.body) if isinstance(n, cst.Call)]

    @property
    def autotuned(self) -> bool:
        return any(d.endswith("autotune") for d in self.decorators)

    @property
    def plain(self) -> bool:
        """Only `@triton.jit` stands above it."""
        return len(self.decorators) == 1

    def calls(self, *functions: str) -> list[cst.Call]:
        """The calls in its body of functions with these dotted names."""
        return [n for n in self._calls if called(n) in functions]


def _is_return(statement: cst.BaseStatement) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Return(value=None)]):
            return True
    return False


@dataclass(frozen=True, eq=False)
class LaunchSite:
    """`kernel[grid](arguments)`."""

    call: cst.Call
    kernel: Kernel
    grid: cst.BaseExpression
    host: cst.FunctionDef | None  # the outermost function it stands in, perhaps a method
    line: cst.SimpleStatementLine | None  # the statement, if the launch is one by itself
    arguments: Mapping[str, cst.Arg]  # by parameter of the kernel
    options: Mapping[str, cst.Arg]
    opaque: bool  # has *args or **kwargs: what it passes is not known


@dataclass(frozen=True, eq=False)
class Source:
    """A parsed candidate."""

    text: str
    module: cst.Module
    kernels: Mapping[str, Kernel]
    hosts: Mapping[str, cst.FunctionDef]
    launches: tuple[LaunchSite, ...]

    def launches_of(self, kernel: Kernel) -> tuple[LaunchSite, ...]:
        return tuple(n for n in self.launches if n.kernel is kernel)

    def replaced(self, pairs: Sequence[tuple[cst.CSTNode, Any]]) -> str:
        """The text with nodes replaced as by `replace`.

        Only the statements of the module that they are in are made again, which is several times as quick: a search for
        parameters does little else.
        """
        table = {id(old) for old, _ in pairs}
        pieces = self._pieces
        if not pieces or any(isinstance(old, cst.Module) for old, _ in pairs):
            return str(replace(self.module, pairs).code)
        found = []
        for statement, (text, nodes) in zip(self.module.body, pieces, strict=True):
            if not table.isdisjoint(nodes):
                text = "".join(map(self.module.code_for_node, _statements(replace(statement, pairs))))
            found.append(text)
        return self._around[0] + "".join(found) + self._around[1]

    @cached_property
    def codes(self) -> dict[str, str]:
        """The text of each kernel and host function, by name."""
        return {name: code(node) for name, node in self.functions.items()}

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """Kernels and host functions, by name."""
        return {**{k.name: k.node for k in self.kernels.values()}, **self.hosts}

    @cached_property
    def _pieces(self) -> list[tuple[str, frozenset[int]]]:
        """The code of each statement of the module, and the nodes below it; [] if it is not that of the text."""
        found = [(self.module.code_for_node(s), frozenset(map(id, walk(s)))) for s in self.module.body]
        return found if self._around[0] + "".join(code for code, _ in found) + self._around[1] == self.text else []

    @cached_property
    def _around(self) -> tuple[str, str]:
        """The text before the statements and after them."""
        head, foot = (
            "".join(map(self.module.code_for_node, part)) for part in (self.module.header, self.module.footer)
        )
        return head, foot

    def rewritable(self) -> list[Kernel]:
        """Kernels whose signature may change: launched, every launch fully known, and mentioned nowhere else."""
        return [k for k in self.kernels.values() if self._closed(k)]

    def _closed(self, kernel: Kernel) -> bool:
        launches = self.launches_of(kernel)
        mentions = self._mentions[kernel.name]
        return bool(launches) and not any(n.opaque for n in launches) and mentions == len(launches) + 1

    @cached_property
    def _mentions(self) -> Counter[str]:
        """The number of occurrences of each name in the module."""
        return Counter(n.value for n in walk(self.module) if isinstance(n, cst.Name))

    def resolve(self, node: cst.BaseExpression, host: cst.FunctionDef | None) -> cst.BaseExpression | None:
        """The expression itself, or for a name the one expression it is bound to; None if that is not certain."""
        value: Binding = node
        for _ in range(_MAX_CHAIN):  # `BLOCK_N = BLOCK_M`: a name may stand for another
            if not isinstance(value, cst.Name):
                return value
            found = [b[value.value] for s in (host, self.module) if s is not None and value.value in (b := bindings(s))]
            value = found[0][0] if found and len(found[0]) == 1 else None
        return None


def _statements(new: Any) -> Sequence[cst.BaseStatement]:
    """Returns the statements that `replace` made from one: one, several, or none."""
    if isinstance(new, cst.RemovalSentinel):
        return []
    return list(new) if isinstance(new, cst.FlattenSentinel) else [new]


def bindings(scope: cst.FunctionDef | cst.Module) -> dict[str, list[Binding]]:
    """Returns the values bound to each name of a scope, parameters by their defaults, without inner functions."""
    found: dict[str, list[Binding]] = {}

    def bind(target: cst.CSTNode, value: Binding) -> None:
        if isinstance(target, cst.Name):
            found.setdefault(target.value, []).append(value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            parts: Sequence[Any] = [None] * len(target.elements)
            if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(target.elements):
                parts = [e.value for e in value.elements]
            for element, part in zip(target.elements, parts, strict=True):
                bind(element.value, part)

    def visit(node: cst.CSTNode) -> None:
        match node:
            case cst.FunctionDef() | cst.ClassDef():
                bind(node.name, None)
                return
            case cst.Lambda():
                return
            case cst.Assign():
                for t in node.targets:
                    bind(t.target, node.value)
            case cst.AnnAssign():
                bind(node.target, node.value)
            case cst.AugAssign():
                bind(node.target, None)
            case cst.For() | cst.CompFor():
                bind(node.target, None)
            case cst.NamedExpr():
                bind(node.target, node.value)
            case cst.AsName():
                bind(node.name, None)
            case cst.Global() | cst.Nonlocal():
                for item in node.names:
                    bind(item.name, None)
        for child in children(node):
            visit(child)

    if isinstance(scope, cst.FunctionDef):
        for p in parameters(scope):
            bind(p.name, p.default)
    for child in children(scope.body) if isinstance(scope, cst.FunctionDef) else scope.body:
        visit(child)
    return found


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    p = function.params
    rest = [s for s in (p.star_arg, p.star_kwarg) if isinstance(s, cst.Param)]
    return [*p.posonly_params, *p.params, *p.kwonly_params, *rest]


@lru_cache(maxsize=128)
def parse(text: str) -> Source | None:
    """Returns the parsed source; None if it is not Python or too large.

    Too large: nested too deep for a recursive walk, or with too many functions or launches for work on each pair.
    """
    try:
        module = cst.parse_module(text)
        compile(text, "<candidate>", "exec", dont_inherit=True)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if _deeper(module, _MAX_DEPTH):
        return None
    functions = [n for n in module.body if isinstance(n, cst.FunctionDef)]
    kernels = {f.name.value: _kernel(f) for f in functions if any(d.endswith("jit") for d in _decorators(f))}
    hosts = {f.name.value: f for f in functions if f.name.value not in kernels}
    launches = [n for f in module.body for n in _launches(f, kernels)]
    if max(len(functions), len(launches)) > _MOST:
        return None
    return Source(text, module, kernels, hosts, tuple(launches))


# libcst takes about six frames a level, Python allows 1000; kernels people write are 20 to 40 levels deep.
_MAX_DEPTH = 100
_MOST = 200  # functions of a module, and launches: files that people write have a dozen


def _deeper(tree: cst.CSTNode, limit: int) -> bool:
    level: list[cst.CSTNode] = [tree]
    for _ in range(limit):
        level = [child for node in level for child in children(node)]
        if not level:
            return False
    return True


def _decorators(function: cst.FunctionDef) -> tuple[str, ...]:
    return tuple(called(d.decorator) or dotted(d.decorator) for d in function.decorators)


def _is_constexpr(annotation: cst.BaseExpression) -> bool:
    text = annotation.value.strip("\"'") if isinstance(annotation, cst.SimpleString) else dotted(annotation)
    return text.endswith("constexpr")


def _kernel(node: cst.FunctionDef) -> Kernel:
    params = parameters(node)
    constexpr = {p.name.value for p in params if p.annotation and _is_constexpr(p.annotation.annotation)}
    defaults = {p.name.value for p in params if p.default is not None}
    order = tuple(p.name.value for p in params)
    return Kernel(node, node.name.value, order, frozenset(constexpr), frozenset(defaults), _decorators(node))


def _launches(top: cst.CSTNode, kernels: Mapping[str, Kernel]) -> Iterator[LaunchSite]:
    Line = cst.SimpleStatementLine | None

    def visit(node: cst.CSTNode, host: cst.FunctionDef | None, line: Line) -> Iterator[LaunchSite]:
        if isinstance(node, cst.SimpleStatementLine):
            line = node
        if isinstance(node, cst.FunctionDef) and host is None:
            host = node
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript):
            kernel = kernels.get(dotted(node.func.value))
            if kernel is not None:
                yield _launch(node, node.func, kernel, host, line)
        for child in children(node):
            yield from visit(child, host, line)

    yield from visit(top, None, None)


def _launch(
    call: cst.Call,
    target: cst.Subscript,
    kernel: Kernel,
    host: cst.FunctionDef | None,
    line: cst.SimpleStatementLine | None,
) -> LaunchSite:
    arguments: dict[str, cst.Arg] = {}
    options: dict[str, cst.Arg] = {}
    opaque = any(a.star for a in call.args)
    for position, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value not in kernel.parameters:
            options[arg.keyword.value] = arg
        elif arg.keyword is not None:
            arguments[arg.keyword.value] = arg
        elif not opaque and position < len(kernel.parameters):
            arguments[kernel.parameters[position]] = arg
    alone = (
        line is not None and len(line.body) == 1 and isinstance(line.body[0], cst.Expr) and line.body[0].value is call
    )
    return LaunchSite(call, kernel, _grid_of(target), host, line if alone else None, arguments, options, opaque)


def _grid_of(target: cst.Subscript) -> cst.BaseExpression:
    """Returns the expression in the brackets; `kernel[m, n]` and `kernel[m,]` have a tuple there."""
    values = [s.slice.value for s in target.slice if isinstance(s.slice, cst.Index)]
    if len(values) < len(target.slice):
        return expr("None")
    whole = len(values) > 1 or isinstance(target.slice[0].comma, cst.Comma)
    return cst.Tuple([cst.Element(value) for value in values]) if whole else values[0]


def grid_tuple(source: Source, launch: LaunchSite) -> tuple[cst.Tuple | None, bool]:
    """The tuple that makes the grid, and whether it is the body of a lambda; None without such a tuple."""
    grid = _grid(source, launch)
    if isinstance(grid, cst.Lambda):
        return (grid.body, True) if isinstance(grid.body, cst.Tuple) else (None, True)
    return (grid, False) if isinstance(grid, cst.Tuple) else (None, False)


def _grid(source: Source, launch: LaunchSite) -> cst.BaseExpression | None:
    """Returns the expression of the grid; of a variable that the host assigns for each launch, its value here."""
    grid = source.resolve(launch.grid, launch.host)
    if grid is not None or launch.host is None or not isinstance(launch.grid, cst.Name):
        return grid
    block: Sequence[cst.CSTNode] = launch.host.body.body
    while (at := next((i for i, s in enumerate(block) if _holds(s, launch.call)), None)) is not None:
        for before in block[:at]:
            bound = _bound_in(before, launch.grid.value)
            if bound:
                plain = isinstance(before, cst.SimpleStatementLine) and len(bound) == 1
                grid = bound[0] if plain else None
        once = isinstance(block[at], cst.SimpleStatementLine)
        if (once or isinstance(block[at], (cst.For, cst.While))) and _bound_in(block[at], launch.grid.value):
            return None  # by the launch itself, or by a loop: before its first iteration it is another one
        if once:
            return grid
        inner = [n for n in walk(block[at]) if isinstance(n, cst.IndentedBlock) and _holds(n, launch.call)]
        block = inner[0].body if inner else ()
    return None


def _bound_in(statement: cst.CSTNode, name: str) -> list[Binding]:
    return bindings(cst.Module([cast(Any, statement)])).get(name, [])


def _holds(node: cst.CSTNode, call: cst.Call) -> bool:
    return any(n is call for n in walk(node))


def grid_values(source: Source, launch: LaunchSite) -> list[str] | None:
    """The elements of the grid as text to put before the launch; None if they are not known there.

    A grid that is a function of the launch's own arguments (`lambda meta: (triton.cdiv(n, meta["BLOCK"]),)`) is written
    out with what the launch gives.
    """
    shape, is_lambda = grid_tuple(source, launch)
    if shape is None or not all(isinstance(e, cst.Element) for e in shape.elements):
        return None
    if not is_lambda:
        name = launch.grid.value if isinstance(launch.grid, cst.Name) else None
        return [f"{name}[{i}]" if name else code(e.value) for i, e in enumerate(shape.elements)]
    grid = cast(cst.Lambda, _grid(source, launch))
    if len(grid.params.params) != 1:
        return None
    meta = grid.params.params[0].name.value
    pairs = []
    for node in walk(shape):
        if isinstance(node, cst.Subscript) and dotted(node.value) == meta:
            match node.slice[0].slice:
                case cst.Index(cst.SimpleString() as key) if key.evaluated_value in launch.arguments:
                    pairs.append((node, bracketed(launch.arguments[str(key.evaluated_value)].value)))
                case _:
                    return None
    written: cst.Tuple = replace(shape, pairs)
    return [code(e.value) for e in written.elements] if meta not in names(written) else None


def fresh(source: Source, stem: str) -> str:
    """`stem`, made unlike every name in the source."""
    taken = {n.value for n in walk(source.module) if isinstance(n, cst.Name)}
    number, name = 1, stem
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name
