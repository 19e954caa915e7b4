"""Finds the values that are surely instances of the candidate's own records, or those classes themselves.

The candidate chooses the names of a record's fields.  `kernel.signature` is an attribute of Triton's even if a record
has a field `signature`.  So such an attribute is allowed on the candidate's own records only.

What a name stands for is followed through the whole source, whatever the order of statements: every value that it is
ever bound to has to be such a record.  Anything uncertain does not count as one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from fitness.frontend.rules.module import FunctionNode, Module, parameters

ROUNDS = 16  # over all names; a name may depend on another one that a later round refuses.
MOST_ARGUMENTS = 10_000  # of all calls of a function: with more, its parameters count as unknown.

# A value is a record ("own"), or a container that holds nothing else ("holder").
Kind = Literal["own", "holder"]
_READERS = ("get", "values")  # methods of containers that return their elements.
_Function = FunctionNode | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(eq=False)
class _Name:
    """A name in its scope.  `own` and `holder` say what it may still be; a round can only set them to False."""

    values: list[tuple[ast.expr | None, Kind | None, _Scope]] = field(default_factory=list)  # It is bound to these.
    class_: ast.ClassDef | None = None
    function: FunctionNode | None = None
    bindings: int = 0
    loads: int = 0
    reads: int = 0  # Loads that read an element, or all of them.
    calls: list[tuple[ast.Call, _Scope]] = field(default_factory=list)  # Loads that call it.
    own: bool = True
    holder: bool = True
    returns: bool = True  # For a function: whether it returns a record.

    @property
    def is_class(self) -> bool:
        return self.class_ is not None and self.bindings == 1


@dataclass(eq=False)
class _Scope:
    outer: _Scope | None
    names: dict[str, _Name] = field(default_factory=lambda: defaultdict(_Name))

    def find(self, name: str) -> _Name | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


class Records:
    """The records of a module.  The first call of `owns` follows the source."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._owned: set[int] | None = None

    def owns(self, node: ast.Attribute) -> bool:
        """Whether `node`, of the module's tree, is an attribute of a record of the candidate's, or of its class."""
        if self._owned is None:
            self._owned = _followed(self._module)
        return id(node) in self._owned


def _followed(module: Module) -> set[int]:
    """Ids of the attributes that belong to records."""
    reader = _Reader(module)
    reader.read()
    follower = _Follower(module, reader)
    follower.follow()
    return {id(node) for node, scope in reader.fields if follower.is_kind(node.value, "own", scope)}


class _Reader:
    """Finds every binding and use of every name."""

    def __init__(self, module: Module) -> None:
        self.module, self.top = module, _Scope(None)
        self.fields: list[tuple[ast.Attribute, _Scope]] = []  # Attributes that have the name of a field.
        self.scopes: dict[int, _Scope] = {}  # of functions and comprehensions, by their id.
        self.all_scopes = [self.top]
        self.returned: dict[int, list[tuple[ast.expr | None, _Scope]]] = {}  # by the id of the function.
        self._loaded: list[tuple[ast.Name, _Scope]] = []
        self._reads: set[int] = set()  # ids of names that are read in a harmless way.
        self._measured: list[tuple[ast.expr, _Scope]] = []  # arguments of `len`.
        self._calls: dict[int, ast.Call] = {}  # by the id of the name that is called.

    def read(self) -> None:
        for statement in self.module.tree.body:
            self._visit(statement, self.top, None)
        # Python's own `len` only reads a container.
        self._reads |= {id(argument) for argument, scope in self._measured if scope.find("len") is None}
        for node, scope in self._loaded:
            if (name := scope.find(node.id)) is not None:
                name.loads += 1
                name.reads += id(node) in self._reads
                if id(node) in self._calls:
                    name.calls.append((self._calls[id(node)], scope))

    def _bind(self, name: str, scope: _Scope, value: ast.expr | None = None, kind: Kind | None = None) -> _Name:
        """Adds a value to `name`: `value` itself (kind "own") or an element of it ("holder"); None: unknown."""
        found = scope.names[name]
        found.bindings += 1
        found.values.append((value, kind, scope))
        return found

    def _assign(self, target: ast.expr, value: ast.expr, scope: _Scope) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self._bind(name, scope, value, "own")
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if _are_pairs(targets, values):
                for part, its in zip(targets, values, strict=True):
                    self._assign(part, its, scope)
            case _:
                self._unknown(target, scope)

    def _unknown(self, target: ast.AST, scope: _Scope) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self._bind(node.id, scope)

    def _each(self, target: ast.expr, iterable: ast.expr, scope: _Scope, outside: _Scope) -> None:
        """Binds the target of `for target in iterable`."""
        if isinstance(target, ast.Name):
            found = self._bind(target.id, scope)
            found.values[-1] = (iterable, "holder", outside)
        else:
            self._unknown(target, scope)
        if isinstance(iterable, ast.Name):
            self._reads.add(id(iterable))

    def _visit(self, node: ast.AST, scope: _Scope, function: _Function | None) -> None:
        inner = scope
        match node:
            case ast.Name(ctx=ast.Load()):
                self._loaded.append((node, scope))
            case ast.Attribute(ctx=ast.Load()) if node.attr in self.module.fields:
                self.fields.append((node, scope))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, scope)
            case ast.NamedExpr(target=target):
                self._everywhere(target.id, scope)  # A comprehension around it does not contain the binding.
            case ast.AugAssign(target=target):
                self._unknown(target, scope)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._each(target, iterable, scope, scope)
            case ast.withitem(optional_vars=ast.expr() as target):
                self._unknown(target, scope)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._bind(name, scope)
            case ast.MatchMapping(rest=str(name)):
                self._bind(name, scope)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bind((alias.asname or alias.name).partition(".")[0], scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for name in names:
                    self._everywhere(name, scope)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._unknown(target, scope)
            case ast.Return(value=value) if function is not None:
                self.returned[id(function)].append((value, scope))
            case ast.ClassDef(name=name):
                plain = scope is self.top and self.module.classes.get(name) is node
                self._bind(name, scope).class_ = node if plain else None
                inner = self._open(scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._define(node, scope)
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehend(node, scope, function)
                return
            case ast.Call(func=ast.Name() as called):
                self._calls[id(called)] = node
                if called.id == "len" and len(node.args) == 1:
                    self._measured.append((node.args[0], scope))
            case ast.Call(func=ast.Attribute(value=ast.Name() as base, attr=attr)) if attr in _READERS:
                self._reads.add(id(base))
            case ast.Subscript(value=ast.Name() as base, ctx=ast.Load()):
                self._reads.add(id(base))
        for child in ast.iter_child_nodes(node):
            self._visit(child, inner, function)

    def _open(self, outer: _Scope) -> _Scope:
        self.all_scopes.append(_Scope(outer))
        return self.all_scopes[-1]

    def _everywhere(self, name: str, scope: _Scope | None) -> None:
        """Makes a name unknown in this scope and in all scopes around it."""
        while scope is not None:
            self._bind(name, scope)
            scope = scope.outer

    def _define(self, node: _Function, scope: _Scope) -> None:
        inner = self.scopes[id(node)] = self._open(scope)
        self.returned[id(node)] = []
        for parameter in parameters(node.args):
            inner.names[parameter.arg].bindings += 1  # Its values come from the calls.
        outside: list[ast.AST | None] = [*node.args.defaults, *node.args.kw_defaults]
        outside += [parameter.annotation for parameter in parameters(node.args)]
        if isinstance(node, ast.Lambda):
            body: list[ast.AST] = [node.body]
        else:
            body = list(node.body)
            outside += [*node.decorator_list, node.returns]
            found = self._bind(node.name, scope)
            found.function = node if found.bindings == 1 and not node.decorator_list else None
        for part in filter(None, outside):
            self._visit(part, scope, None)
        for part in body:
            self._visit(part, inner, node)

    def _comprehend(self, node: _Comprehension, scope: _Scope, function: _Function | None) -> None:
        inner = self.scopes[id(node)] = self._open(scope)
        for number, generator in enumerate(node.generators):
            outside = inner if number else scope
            self._each(generator.target, generator.iter, inner, outside)
            self._visit(generator.target, inner, function)
            self._visit(generator.iter, outside, function)
            for condition in generator.ifs:
                self._visit(condition, inner, function)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self._visit(part, inner, function)


class _Follower:
    """Rules out what names cannot be, until nothing changes."""

    def __init__(self, module: Module, reader: _Reader) -> None:
        self._module, self._reader = module, reader
        self._names = [name for scope in reader.all_scopes for name in scope.names.values()]
        self._decided: dict[tuple[int, Kind], bool] = {}  # by expression, in this round.

    def follow(self) -> None:
        self._enter_parameters()
        for name in self._names:
            if name.is_class:
                name.holder = False
            else:  # Code that gets a container may put something else into it.
                name.holder = name.loads == name.reads
        for _ in range(ROUNDS):
            self._decided.clear()
            changed = [self._narrow(name) for name in self._names]
            if not any(changed):
                break
        else:
            for name in self._names:
                name.own, name.holder, name.returns = name.is_class, False, False
        self._decided.clear()

    def _narrow(self, name: _Name) -> bool:
        """Rules out what the name cannot be; returns whether anything changed."""
        before = name.own, name.holder, name.returns
        if not name.is_class:
            name.own = name.own and self._all(name, "own")
        name.holder = name.holder and self._all(name, "holder")
        name.returns = name.returns and self._returns(name)
        return before != (name.own, name.holder, name.returns)

    def _all(self, name: _Name, kind: Kind) -> bool:
        """Whether every value of the name is of that kind; a parameter of a function without calls may be anything."""
        return all(
            value is not None
            and bound is not None
            and (bound == "own" or kind == "own")  # Elements of elements are not followed.
            and self.is_kind(value, "holder" if bound == "holder" else kind, scope)
            for value, bound, scope in name.values
        )

    def _returns(self, name: _Name) -> bool:
        if name.function is None or name.bindings != 1 or isinstance(name.function, ast.AsyncFunctionDef):
            return False
        found = self._reader.returned[id(name.function)]
        return bool(found) and all(v is not None and self.is_kind(v, "own", scope) for v, scope in found)

    def _enter_parameters(self) -> None:
        """Gives parameters the values of all calls, or an unknown one if there may be others."""
        followed: set[int] = set()
        for name in self._names:
            function = name.function
            if function is not None and self._is_called_only(name, function):
                followed.add(id(function))
                inner = self._reader.scopes[id(function)]
                for call, scope in name.calls:
                    _enter(function, call, scope, inner)
        for node in ast.walk(self._module.tree):
            if isinstance(node, _Function) and id(node) not in followed:
                inner = self._reader.scopes[id(node)]
                for parameter in parameters(node.args):
                    inner.names[parameter.arg].values.append((None, None, inner))

    def _is_called_only(self, name: _Name, function: FunctionNode) -> bool:
        """Whether the source shows all calls of the function."""
        many = len(name.calls) * len(parameters(function.args)) > MOST_ARGUMENTS
        hidden = name.bindings > 1 or name.loads > len(name.calls) or function.name == self._module.entry
        return not many and not hidden

    def is_kind(self, node: ast.expr, kind: Kind, scope: _Scope) -> bool:
        key = id(node), kind
        if key not in self._decided:
            self._decided[key] = self._own(node, scope) if kind == "own" else self._holds(node, scope)
        return self._decided[key]

    def _own(self, node: ast.expr, scope: _Scope) -> bool:
        match node:
            case ast.Name(id=name):
                return (found := scope.find(name)) is not None and found.own
            case ast.Call(func=ast.Name(id=name)):
                found = scope.find(name)
                return found is not None and (found.is_class or found.returns)
            case ast.Call(func=ast.Attribute(value=base, attr="_replace")) if "_replace" not in self._module.fields:
                return self.is_kind(base, "own", scope)
            case ast.Call(func=ast.Attribute(value=base, attr="get"), args=[_, *default], keywords=[]):
                return self.is_kind(base, "holder", scope) and all(self.is_kind(d, "own", scope) for d in default)
            case ast.Call(func=function, args=[base]) if self._module.path(function) == "dataclasses.replace":
                return self.is_kind(base, "own", scope)
            case ast.Subscript(value=base):
                return self.is_kind(base, "holder", scope)
            case ast.IfExp(body=one, orelse=other):
                return self.is_kind(one, "own", scope) and self.is_kind(other, "own", scope)
            case ast.BoolOp(values=values):
                return all(self.is_kind(value, "own", scope) for value in values)
            case ast.NamedExpr(value=value):
                return self.is_kind(value, "own", scope)
        return False

    def _holds(self, node: ast.expr, scope: _Scope) -> bool:
        match node:
            case ast.Name(id=name):
                return (found := scope.find(name)) is not None and found.holder
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return all(self.is_kind(part, "own", scope) for part in parts)
            case ast.Dict(keys=keys, values=parts) if all(isinstance(key, ast.Constant) for key in keys):
                return all(self.is_kind(part, "own", scope) for part in parts)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.is_kind(node.elt, "own", self._reader.scopes[id(node)])
            case ast.Call(func=ast.Attribute(value=base, attr="values"), args=[], keywords=[]):
                return self.is_kind(base, "holder", scope)
        return False


def _are_pairs(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether each target gets the value at its own position."""
    starred = any(isinstance(part, ast.Starred) for part in (*targets, *values))
    return len(targets) == len(values) and not starred


def _enter(function: FunctionNode, call: ast.Call, scope: _Scope, inner: _Scope) -> None:
    """Gives the parameters of `function` the values of a call in `scope`.  inner: the function's own scope."""
    args, outside = function.args, inner.outer or inner
    plain = [*args.posonlyargs, *args.args]
    starred = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    given: dict[str, tuple[ast.expr, _Scope]] = {}
    for parameter, default in zip(reversed(plain), reversed(args.defaults), strict=False):
        given[parameter.arg] = default, outside
    for parameter, key_default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if key_default is not None:
            given[parameter.arg] = key_default, outside
    given |= {parameter.arg: (value, scope) for parameter, value in zip(plain, call.args, strict=False)}
    given |= {k.arg: (k.value, scope) for k in call.keywords if k.arg is not None}
    for parameter in parameters(args):
        certain = not starred and parameter.arg in given and parameter not in (args.vararg, args.kwarg)
        value, place = given[parameter.arg] if certain else (None, scope)
        inner.names[parameter.arg].values.append((value, "own" if certain else None, place))
