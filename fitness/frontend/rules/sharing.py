"""Finds what outlives a call and how code reaches it.

That are globals that can be written, local names for them, and functions that return them ("lenders").
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fitness.frontend.rules.module import COMPREHENSIONS, FunctionNode, Module, bound_names, parameters
from fitness.frontend.rules.names import words

MUTATORS = words("""
    append extend insert pop popitem remove clear sort reverse update setdefault add discard appendleft move_to_end
""")
MAKERS = words("list dict set")
_REACHES_INSIDE = words("get items values setdefault pop")  # methods that return elements of a container.
_CACHES = ("functools.lru_cache", "functools.cache")

Function = FunctionNode | ast.Lambda
Source = ast.Name | ast.Call  # the origin of a value: a name, or a call of a lender.


def sources(node: ast.AST, lenders: Container[str] = ()) -> Iterator[Source]:
    """The origins of an access such as `CACHE[k].items()`: here the name `CACHE`."""
    match node:
        case ast.Name():
            yield node
        case ast.Call(func=ast.Name(id=name)) if name in lenders:
            yield node
        case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
            yield from sources(value, lenders)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _REACHES_INSIDE:
            yield from sources(value, lenders)
        case ast.NamedExpr() | ast.BoolOp() | ast.IfExp():
            for part in _alternatives(node):
                yield from sources(part, lenders)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """The possible values of `a or b`, `a if x else b` and `(n := a)`."""
    match node:
        case ast.NamedExpr(value=value):
            yield from _alternatives(value)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _alternatives(value)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _alternatives(body)
            yield from _alternatives(orelse)
        case _:
            yield node


@dataclass(frozen=True)
class Aliases:
    """Local names of a function that stand for containers."""

    names: frozenset[str] = frozenset()  # for a global container or something inside one.
    whole: frozenset[str] = frozenset()  # those among `names` that are surely a list, dict or set.
    lists: frozenset[str] = frozenset()  # for new lists, dicts and sets.


class Sharing:
    """The containers that the functions of a module share, and the functions that write to them or return them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.containers = _constants(module, lambda value: not _immutable(module, value))
        self._displays = _constants(module, _is_display)
        functions = list(_named_functions(module))
        self.writers = frozenset(name for name, function, nodes in functions if _writes_parameters(function, nodes))
        # A cached function returns the same object again.
        self.lenders = frozenset(name for name, function, _ in functions if self.is_cached(function))
        for _ in range(2):  # The second round finds lenders that call lenders.
            self.lenders |= {name for name, function, nodes in functions if self._lends(function, nodes)}

    def is_cached(self, function: Function) -> bool:
        """Whether a decorator of functools caches the function's results."""
        decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
        return any(self.module.path(d.func if isinstance(d, ast.Call) else d) in _CACHES for d in decorators)

    def _lends(self, function: Function, nodes: list[ast.AST]) -> bool:
        """Whether the function returns something that is in a container that outlives the call."""
        own, aliases = _own_names(function), self._aliases(function, nodes).names
        return any(
            isinstance(source, ast.Call) or source.id in aliases or source.id in self.containers - own
            for value in _returned(function)
            for part in (value.elts if isinstance(value, ast.Tuple) else [value])
            for source in sources(part, self.lenders)
        )

    def aliases(self, function: FunctionNode) -> Aliases:
        """The aliases of a function, with those of the functions in it."""
        return self._aliases(function, ast.walk(function))

    def _aliases(self, function: Function, nodes: Iterable[ast.AST]) -> Aliases:
        own, bindings = _own_names(function), list(_bindings(nodes))
        shared, displays = self.containers - own, self._displays - own
        names: set[str] = set()
        whole: set[str] = set()
        lists: set[str] = set()
        for _ in range(2):  # The second round finds aliases of aliases.
            for bound, value in bindings:
                parts = list(_alternatives(value))
                found = (source for part in parts for source in sources(part, self.lenders))
                if any(isinstance(s, ast.Call) or s.id in shared or s.id in names for s in found):
                    names |= bound
                if any(isinstance(part, ast.Name) and (part.id in displays or part.id in whole) for part in parts):
                    whole |= bound
                if any(map(_is_display, parts)):
                    lists |= bound
        return Aliases(frozenset(names), frozenset(whole), frozenset(lists))


def _constants(module: Module, test: Callable[[ast.expr], bool]) -> frozenset[str]:
    """Names of constants with a value that passes the test, and other names for them."""
    names = module.constants_with(test)
    return names | module.constants_with(lambda value: isinstance(value, ast.Name) and value.id in names)


def _named_functions(module: Module) -> Iterator[tuple[str, Function, list[ast.AST]]]:
    """Name, node and inner nodes of each named function or lambda; at the top level with the functions inside."""
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                top = module.functions.get(name) is node
                yield name, node, list(ast.walk(node) if top else _within(node))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                yield name, function, list(_within(function))


def _within(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function without those of the functions in it, so that deep nesting costs no more than flat code."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function):
            waiting.extend(ast.iter_child_nodes(node))


def _own_names(function: Function) -> frozenset[str]:
    names = frozenset(a.arg for a in parameters(function.args))
    return names if isinstance(function, ast.Lambda) else names | bound_names(function.body)


def _returned(function: Function) -> list[ast.expr]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    return [n.value for n in _within(function) if isinstance(n, ast.Return) and n.value is not None]


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[set[str], ast.expr]]:
    """Sets of names that the nodes bind, each with the expression whose value, or a part of it, they are bound to."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)) if len(left) == len(right):
                # Part by part: a new list in the same assignment as a shared one is not shared.
                yield from ((_captured([target]), value) for target, value in zip(left, right, strict=True))
            case ast.Assign(targets=targets, value=value):
                yield _captured(targets), value
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
            ):
                yield _captured([target]), value
            case ast.Match(subject=value, cases=cases):
                yield _captured([case.pattern for case in cases]), value
            case ast.arguments():
                positional = [*node.posonlyargs, *node.args]
                pairs = [*zip(reversed(positional), reversed(node.defaults), strict=False)]
                pairs += [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d is not None]
                yield from (({argument.arg}, default) for argument, default in pairs)


def _captured(targets: Sequence[ast.AST]) -> set[str]:
    """Names that targets or patterns bind."""
    names: set[str] = set()
    for node in (node for target in targets for node in ast.walk(target)):
        match node:
            case ast.Name(id=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
    return names


def _writes_parameters(function: Function, nodes: list[ast.AST]) -> bool:
    """Whether the function stores into, extends, or calls a changing method of, one of its parameters."""
    own = {a.arg for a in parameters(function.args)}
    for node in nodes:
        match node:
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                pass
            case ast.Attribute(attr=attr) if attr in MUTATORS:
                pass
            case ast.AugAssign(target=ast.Name(id=name), value=value) if name in own and is_new_container(value):
                return True
            case _:
                continue
        if any(isinstance(source, ast.Name) and source.id in own for source in sources(node)):
            return True
    return False


def is_new_container(node: ast.expr, lists: Container[str] = ()) -> bool:
    """Whether an operand is surely a list, tuple, dict or set: never a number."""
    match node:
        case ast.Name(id=name):
            return name in lists
        case ast.BinOp(left=left, right=right):
            return is_new_container(left, lists) or is_new_container(right, lists)
    return isinstance(node, ast.Tuple) or _is_display(node)


def _is_display(node: ast.expr) -> bool:
    """Whether the expression makes a list, dict or set: as a display, or by a call of its type."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in MAKERS
    return isinstance(node, (ast.List, ast.Dict, ast.Set, *COMPREHENSIONS))


def _immutable(module: Module, node: ast.expr) -> bool:
    """Whether nothing inside the value can be written: numbers, text, names of modules, tuples of such."""
    for part in eager(node):
        if isinstance(part, (ast.List, ast.Dict, ast.Set, *COMPREHENSIONS)):
            return False
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            name = part.func.id
            if name in MAKERS or name in module.functions or name in module.classes:
                return False
    return True


def eager(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of an expression that are evaluated with it: not the bodies of lambdas."""
    yield node
    if not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from eager(child)
