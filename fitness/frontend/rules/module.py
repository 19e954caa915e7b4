"""Reads a candidate's source for the rules: what its top level defines, and what each name means at its place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from fitness.frontend.rules.names import MODULES

Report = Callable[[str, ast.AST, str], None]  # (rule, node, message).
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Module:
    """The top level of a source.  `reachable` are the host functions that the entry or the top level mention."""

    tree: ast.Module
    entry: str
    imports: dict[str, str] = field(default_factory=dict)  # name -> dotted path.
    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict)
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, list[ast.expr]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)  # fields of the classes.
    bound: list[tuple[str, ast.stmt]] = field(default_factory=list)  # every binding, in order.
    reachable: frozenset[str] = frozenset()

    def path(self, node: ast.AST, local: Container[str] = frozenset()) -> str | None:
        """The dotted path of `node`, e.g. "torch.float32"; None unless it is an importable module or a name in one."""
        match node:
            case ast.Name(id=name) if name not in local:
                return self.imports.get(name)
            case ast.Attribute(value=base, attr=attr):
                parent = self.path(base, local)
                return f"{parent}.{attr}" if parent in MODULES else None
        return None

    def defines(self, name: str) -> bool:
        """Whether the top level defines that name."""
        return any(name in table for table in (self.kernels, self.functions, self.classes, self.constants))

    def constants_with(self, test: Callable[[ast.expr], bool]) -> frozenset[str]:
        """Names of constants one of whose values passes; a value that many names share is tested once."""
        values = {id(value): value for bound in self.constants.values() for value in bound}
        passed = {key for key, value in values.items() if test(value)}
        return frozenset(name for name, bound in self.constants.items() if any(id(v) in passed for v in bound))


def read_module(tree: ast.Module, entry: str) -> Module:
    """The Module of a syntax tree.  entry: the host function that the task calls."""
    module = Module(tree, entry)
    for statement in tree.body:
        _bind(module, statement)
    for node in ast.walk(tree):  # Other imports are refused.  A lenient task may inherit that, so they are read too.
        for name, path in _imported(node):
            module.imports.setdefault(name, path)
    module.reachable = _reachable(module)
    return module


def is_main_guard(node: ast.stmt) -> bool:
    """Whether the statement is `if __name__ == "__main__":` without an else, which the evaluator never runs."""
    match node:
        case ast.If(test=ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]):
            return True
    return False


def is_import_fallback(node: ast.stmt) -> bool:
    """Whether the statement imports names of the language and, on ImportError, the same names from their old module.

    For example `try: from triton.language.extra import libdevice`.  The other rules skip such a statement, so nothing
    in it may do more than bind these names.
    """
    if not isinstance(node, ast.Try) or node.orelse or node.finalbody:
        return False
    names = _language_names(node.body)
    return names is not None and all(_on_import_error(h) and _language_names(h.body) == names for h in node.handlers)


def _on_import_error(handler: ast.ExceptHandler) -> bool:
    """Whether the handler names import errors only.  Its type is evaluated, so no other expression is allowed."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else filter(None, [handler.type])
    errors = ("ImportError", "ModuleNotFoundError")
    return handler.name is None and all(isinstance(t, ast.Name) and t.id in errors for t in types)


def _language_names(body: list[ast.stmt]) -> set[str] | None:
    """The names that a body of imports from the kernel language binds; None for other bodies."""
    names: set[str] = set()
    for node in body:
        if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith("triton.language.") or node.level:
            return None
        names |= {alias.asname or alias.name for alias in node.names}
    return names


def is_module_alias(node: ast.stmt, module: Module) -> bool:
    """Whether the statement is like `tl = triton.language`: an assignment that imports."""
    match node:
        case ast.Assign(targets=[ast.Name()], value=value):
            return module.path(value) in MODULES
    return False


def is_import(node: ast.stmt, module: Module) -> bool:
    """Whether the statement only imports, in any of the allowed forms."""
    return isinstance(node, (ast.Import, ast.ImportFrom)) or is_import_fallback(node) or is_module_alias(node, module)


def _bind(module: Module, node: ast.stmt) -> None:
    match node:
        case ast.Import() | ast.ImportFrom():
            for name, path in _imported(node):
                _import(module, name, path, node)
        case ast.Try() if is_import_fallback(node):
            for statement in node.body:
                _bind(module, statement)
        case ast.FunctionDef() if is_kernel(node, module):
            module.kernels[node.name] = node
            module.bound.append((node.name, node))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            module.functions[node.name] = node
            module.bound.append((node.name, node))
        case ast.ClassDef():
            module.classes[node.name] = node
            module.bound.append((node.name, node))
            for item in node.body:
                module.fields |= {t.id for t in ast.walk(item) if isinstance(t, ast.Name) and not _is_load(t)}
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_module_alias(node, module):
            _import(module, name, module.path(value) or "", node)
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign(value=ast.expr()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (t for top in targets for t in ast.walk(top)):
                if isinstance(target, ast.Name) and not _is_load(target):
                    module.constants.setdefault(target.id, []).append(node.value)  # type: ignore[arg-type]
                    module.bound.append((target.id, node))


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with their dotted paths."""
    match node:
        case ast.Import():
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, alias.name if alias.asname else name
        case ast.ImportFrom():
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _import(module: Module, name: str, path: str, node: ast.stmt) -> None:
    if module.imports.get(name) != path:
        module.bound.append((name, node))
    module.imports[name] = path


def _is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def is_kernel(node: FunctionNode, module: Module) -> bool:
    """Whether a decorator of `node` is triton.jit."""
    return any(module.path(d.func if isinstance(d, ast.Call) else d) == "triton.jit" for d in node.decorator_list)


def mentions(node: ast.AST) -> set[str]:
    """All names in an expression or statement."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _reachable(module: Module) -> frozenset[str]:
    """Host functions mentioned, at any depth, by the entry or by code that runs on import."""
    waiting = {module.entry}
    for statement in module.tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            outside = [*statement.decorator_list, *statement.args.defaults, *filter(None, statement.args.kw_defaults)]
            waiting |= {name for part in outside for name in mentions(part)}
        elif not is_main_guard(statement):
            waiting |= mentions(statement)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in module.functions and name not in seen:
            seen.add(name)
            waiting |= mentions(module.functions[name])
    return frozenset(seen)


# --- scopes ----------------------------------------------------------------------------------------------------------


def parameters(args: ast.arguments) -> list[ast.arg]:
    """All parameters of a function, `*args` and `**kwargs` too."""
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [a for a in every if a is not None]


def bound_names(body: list[ast.stmt]) -> frozenset[str]:
    """Names that a function with this body binds itself; nested functions and comprehensions have their own scopes."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                walruses = (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
                names |= {t.id for t in walruses if isinstance(t, ast.Name)}
                continue
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(names)


class ScopedVisitor(ast.NodeVisitor):
    """Walks code and keeps in `local` the names that the enclosing functions, lambdas and comprehensions bind."""

    def __init__(self, module: Module, report: Report) -> None:
        self.module, self.report = module, report
        self.local: frozenset[str] = frozenset()

    def inside(self, names: frozenset[str], nodes: list[ast.AST]) -> None:
        """Visits `nodes` with `names` bound too."""
        before, self.local = self.local, self.local | names
        for node in nodes:
            self.visit(node)
        self.local = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit_signature(node.args)
        for part in (*node.decorator_list, *filter(None, [node.returns])):
            self.visit(part)
        self.visit_body(node)

    def visit_body(self, node: FunctionNode) -> None:
        names = frozenset(a.arg for a in parameters(node.args)) | bound_names(node.body)
        self.inside(names, list(node.body))

    def visit_signature(self, args: ast.arguments) -> None:
        """Visits defaults and annotations, which are evaluated outside the function."""
        annotations = (a.annotation for a in parameters(args))
        for part in (*args.defaults, *args.kw_defaults, *annotations):
            if part is not None:
                self.visit(part)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_signature(node.args)
        self.inside(frozenset(a.arg for a in parameters(node.args)), [node.body])

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # evaluated outside
        targets = [t for g in node.generators for t in ast.walk(g.target)]
        names = {t.id for t in targets if isinstance(t, ast.Name) and not _is_load(t)}
        parts: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for number, generator in enumerate(node.generators):
            parts += [generator.target, *generator.ifs] + ([generator.iter] if number else [])
        self.inside(frozenset(names), parts)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension


def live(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes below `node`, without the branches that a literal condition switches off."""
    waiting: list[ast.AST] = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, ast.Constant):
            waiting.extend(node.body if node.test.value else node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))
