"""Checks that host functions keep nothing between calls: they must do the same in every call."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from fitness.frontend.rules.module import (
    COMPREHENSIONS,
    FunctionNode,
    Module,
    Report,
    ScopedVisitor,
    is_import,
    is_main_guard,
)
from fitness.frontend.rules.names import TENSOR_VIEWS, TORCH_TENSORS, words
from fitness.frontend.rules.sharing import MAKERS, MUTATORS, Aliases, Sharing, eager, is_new_container, sources

_LAZY_BUILTINS = words("iter map filter zip enumerate reversed")
_CONSUMERS = words("list tuple dict set frozenset sorted sum min max any all")


class StateRules(ScopedVisitor):
    """Reports writes to anything that outlives a call, under its own name or a local one."""

    def __init__(self, module: Module, report: Report) -> None:
        super().__init__(module, report)
        self.shared = Sharing(module)
        self.aliases = Aliases()  # of the function being visited.
        self.globals = {*module.imports, *(name for name, _ in module.bound)}

    def check(self) -> None:
        """Reports every broken rule of the module."""
        for statement in self.module.tree.body:
            if is_import(statement, self.module):
                continue
            if isinstance(statement, ast.ClassDef):
                self._check_fields(statement)
            elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                self._check_constant(statement)
                self.generic_visit(statement)
            elif isinstance(statement, ast.FunctionDef):
                self._check_function(statement)
            elif not is_main_guard(statement):
                self.visit(statement)

    def _check_function(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        if self.module.kernels.get(node.name) is node:
            return
        self.visit_signature(node.args)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._check_default(default, f"the default of a parameter of `{node.name}`")
        if self.shared.is_cached(node):
            self._check_cached(node)
        self.aliases = self.shared.aliases(node)
        self.visit_body(node)
        self.aliases = Aliases()

    def _outlives(self, node: ast.AST, among: Container[str] | None = None) -> str | None:
        """The name of the global value that a write to `node` changes, or None.

        among: if given, the names of the globals to look for.
        """
        for source in sources(node, self.shared.lenders):
            if isinstance(source, ast.Call):
                return f"{ast.unparse(source.func)}(...)"
            is_global = source.id in (self.globals if among is None else among)
            if source.id in self.aliases.names or (is_global and source.id not in self.local):
                return source.id
        return None

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        match node.target:  # On a number, `+=` makes a new one.
            case ast.Name(id=name) if name in self.aliases.names:
                if name in self.aliases.whole or is_new_container(node.value, self.aliases.lists):
                    self.report("state", node, f"`{name}` outlives the call and is extended; use a local variable")
        self.generic_visit(node)

    def _refuse_declaration(self, node: ast.Global | ast.Nonlocal) -> None:
        keyword = type(node).__name__.lower()
        self.report("state", node, f"`{keyword} {', '.join(node.names)}` keeps state between calls; use arguments")

    visit_Global = visit_Nonlocal = _refuse_declaration

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.attr in MUTATORS and self.module.path(node, self.local) is None:
                name = self._outlives(node.value)
                if name is not None:
                    message = f"`{name}...{node.attr}` changes what outlives the call; use a local variable"
                    self.report("state", node, message)
        else:
            name, text = self._outlives(node), ast.unparse(node)
            if name is not None and name not in self.module.imports and name not in self.module.kernels:
                self.report("state", node, f"`{text} = ...` keeps state between calls; use local variables")
            else:
                self.report(
                    "patch", node, f"`{text} = ...` changes an object that is not the candidate's; leave it alone"
                )
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load) and (name := self._outlives(node.value)):
            self.report("state", node, f"`{name}[...]` outlives the call and is written; use a local variable")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        shared = next(filter(None, (self._outlives(a, self.shared.containers) for a in node.args)), None)
        match node.func:
            case ast.Name(id="next") if node.args and (name := self._outlives(node.args[0])):
                self.report("state", node, f"`next({name})` counts calls; use arguments")
            case ast.Name(id=function) if function in self.shared.writers and shared:
                self.report("state", node, f"`{function}` writes to `{shared}`, which outlives the call; copy it")
            case ast.Attribute(value=ast.Name(id=kind), attr=attr) if kind in MAKERS and attr in MUTATORS and shared:
                self.report("state", node, f"`{kind}.{attr}` changes `{shared}`, which outlives the call; copy it")
        self.generic_visit(node)

    # --- values that outlive calls

    def _check_constant(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        for lazy in _lazy(self.module, node.value):
            self.report("state", lazy, "a global iterator remembers how far it was read; make it a tuple")
        for call in eager(node.value):
            path = self.module.path(call.func) if isinstance(call, ast.Call) else None
            if path and path.startswith("torch.") and path.removeprefix("torch.") in TORCH_TENSORS:
                self.report("state", call, f"a global tensor ({path}) outlives the call; allocate it in the entry")

    def _check_default(self, node: ast.expr, what: str) -> None:
        for part in ast.walk(node):
            shared = isinstance(part, ast.Name) and part.id in self.shared.containers
            called = isinstance(part, ast.Call) and self.module.path(part.func) is None
            if shared or called or isinstance(part, (ast.List, ast.Dict, ast.Set, ast.Lambda, *COMPREHENSIONS)):
                self.report("state", node, f"{what} is made once and shared by all calls; use None or a number")
                return

    def _check_fields(self, node: ast.ClassDef) -> None:
        for item in node.body:
            if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None:
                self._check_default(item.value, f"the default of a field of `{node.name}`")

    def _check_cached(self, node: FunctionNode) -> None:
        for part in ast.walk(node):
            launched = isinstance(part, ast.Name) and part.id in self.module.kernels
            path = (self.module.path(part) or "") if isinstance(part, ast.Attribute) else ""
            made = path.startswith("torch.") and path.removeprefix("torch.") in TORCH_TENSORS
            viewed = isinstance(part, ast.Attribute) and not path and part.attr in TENSOR_VIEWS | {"shape", "stride"}
            if launched or made or viewed:
                self.report("state", node, f"the cache of `{node.name}` would keep tensors between calls; remove it")
                return


def _lazy(module: Module, node: ast.AST, consumed: bool = False) -> Iterator[ast.AST]:
    """Iterators in an expression that still exist after its evaluation."""
    match node:
        case ast.Lambda():
            return
        case ast.GeneratorExp() if not consumed:
            yield node
        case ast.Call(func=function) if not consumed:
            lazy = isinstance(function, ast.Name) and function.id in _LAZY_BUILTINS
            if lazy or (module.path(function) or "").startswith("itertools."):
                yield node
    reads = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONSUMERS
    nested = consumed and isinstance(node, (ast.Call, ast.GeneratorExp, ast.comprehension))
    inner = reads or nested or isinstance(node, (*COMPREHENSIONS, ast.comprehension, ast.Starred))
    for child in ast.iter_child_nodes(node):
        yield from _lazy(module, child, consumed=inner)


def check_state(module: Module, report: Report) -> None:
    """Reports everything in the host code that could keep state between calls."""
    StateRules(module, report).check()
