"""Checks host code: the top level, the functions that launch kernels, and everything they name."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Set
from string import Formatter

from fitness.frontend.rules.module import (
    FunctionNode,
    Module,
    Report,
    ScopedVisitor,
    is_import,
    is_import_fallback,
    is_main_guard,
    live,
    mentions,
)
from fitness.frontend.rules.names import (
    CODE_OPTIONS,
    FRAME_ATTRIBUTES,
    HOOKS,
    HOST_BUILTINS,
    JIT_OPTIONS,
    MEMORY_ATTRIBUTES,
    MODULES,
    OTHER_ATTRIBUTES,
    TENSOR_METADATA,
    TENSOR_VIEW_LISTS,
    TENSOR_VIEWS,
    TORCH_COMPUTE,
    leaf_rule,
    refused_rule,
)
from fitness.frontend.rules.records import Records

_DUNDER = re.compile(r"__\w+__")
_VALUE_ATTRIBUTES = TENSOR_VIEWS | TENSOR_VIEW_LISTS | TENSOR_METADATA | OTHER_ATTRIBUTES
_RECORD_BASES = ("typing.NamedTuple", "enum.Enum", "enum.IntEnum", "enum.StrEnum")
_PLAIN_DECORATORS = ("torch.no_grad", "torch.inference_mode", "functools.lru_cache", "functools.cache")
_WRAPPERS = ("triton.autotune", "triton.heuristics")

_ADVICE = {
    "delegate": "compute it in a kernel; the host allocates, views and launches",
    "library": "host code may allocate, view, ask for device properties, and launch",
    "import": "use what a kernel needs of math, functools, itertools, dataclasses, typing",
    "dunder": "private names are out of bounds",
    "inline-asm": "write it with triton.language",
}


def check_structure(module: Module, report: Report) -> None:
    """Reports what is wrong with the top level: its statements and definitions, the entry, kernels, launches."""
    for statement in module.tree.body:
        _check_statement(module, statement, report)
    _check_bindings(module, report)
    _check_type_parameters(module, report)
    if module.entry not in module.functions:
        found = "a kernel" if module.entry in module.kernels else "no function"
        message = (
            f"expected a top-level host function `{module.entry}`, found {found}; define `def {module.entry}(...)`"
        )
        report("entry", module.kernels.get(module.entry, module.tree), message)
    if not module.kernels:
        report("no-kernel", module.tree, "no top-level @triton.jit function; the work has to be done by one")
    elif module.entry in module.functions and not _launches(module):
        entry = module.functions[module.entry]
        message = f"`{module.entry}` launches none of {', '.join(module.kernels)}; write kernel[grid](...)"
        report("no-launch", entry, message)


def _check_statement(module: Module, node: ast.stmt, report: Report) -> None:
    match node:
        case ast.Import() | ast.ImportFrom():
            _check_import(node, report)
        case ast.Expr(value=ast.Constant(value=str())):
            pass
        case ast.AsyncFunctionDef():
            report("definition", node, f"`{node.name}` is a coroutine; use a plain `def`")
        case ast.ClassDef():
            _check_class(module, node, report)
        case ast.FunctionDef() | ast.Assign() | ast.AugAssign() | ast.AnnAssign():
            pass
        case ast.Try() if is_import_fallback(node):
            for part in ast.walk(node):
                if isinstance(part, ast.ImportFrom):
                    _check_import(part, report)
        case _ if is_main_guard(node):
            pass
        case _:
            kind = type(node).__name__.lower()
            report("top-level", node, f"a `{kind}` statement runs on import; keep constants and definitions here only")


def _check_import(node: ast.Import | ast.ImportFrom, report: Report) -> None:
    if isinstance(node, ast.Import):
        for path in (a.name for a in node.names):
            if path not in MODULES:
                report("import", node, f"`import {path}` is not allowed; {_ADVICE['import']}")
        return
    source = ("." * node.level) + (node.module or "")
    for name in (a.name for a in node.names):
        path = f"{source}.{name}"
        if name == "*":
            report("import", node, f"`from {source} import *` hides what is used; import the names")
        elif path in MODULES:
            continue
        elif source not in MODULES:
            report("import", node, f"`from {source} import {name}` is not allowed; {_ADVICE['import']}")
        elif (rule := leaf_rule(path)) not in (None, "delegate"):
            report(rule or "import", node, f"`{path}` is not allowed; {_ADVICE.get(rule or '', _ADVICE['import'])}")


def _check_class(module: Module, node: ast.ClassDef, report: Report) -> None:
    bases = [module.path(b) for b in node.bases]
    paths = [module.path(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    plain = bases and all(b in _RECORD_BASES for b in bases) and not paths
    plain = plain or (not bases and paths == ["dataclasses.dataclass"])
    fields = (ast.AnnAssign, ast.Assign, ast.Pass)
    doc = [s for s in node.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)]
    if not plain or node.keywords or any(not isinstance(s, fields) and s not in doc for s in node.body):
        message = f"class `{node.name}`: only dataclasses, NamedTuples and enums of plain fields; use functions instead"
        report("definition", node, message)


def _check_bindings(module: Module, report: Report) -> None:
    """Reports names that are bound twice: a reader, and the extraction of kernels, would take the wrong one."""
    first: set[str] = set()
    for name, node in module.bound:
        if name.startswith("__") and name != "__all__":
            report("dunder", node, f"`{name}` may not be defined; {_ADVICE['dunder']}")
        elif hasattr(builtins, name) and name not in HOST_BUILTINS | {module.entry}:
            report("builtin", node, f"`{name}` hides the builtin for the whole file; choose another name")
        fixed = name in module.imports or name in module.kernels or name in module.functions or name in module.classes
        if name in first and fixed:
            report("definition", node, f"`{name}` is defined twice; give the second one its own name")
        first.add(name)


def _check_type_parameters(module: Module, report: Report) -> None:
    """Reports type parameters and type aliases (Python 3.12): their bounds and values are code that runs on access."""
    for node in ast.walk(module.tree):
        if getattr(node, "type_params", ()) or type(node).__name__ == "TypeAlias":
            report("definition", node, "type parameters and type aliases have no use here; leave them out")


def _launches(module: Module) -> bool:
    """Whether a function that the entry reaches uses a kernel or a table of kernels."""
    names = module.kernels.keys() | module.constants_with(lambda value: bool(module.kernels.keys() & mentions(value)))
    return any(_uses(module.functions[name], names) for name in module.reachable)


def _uses(function: FunctionNode, names: Set[str]) -> bool:
    """Whether one of `names` is used (subscripted, assigned, handed on) in code that can run, not only mentioned."""
    bare = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Expr)}
    return any(isinstance(n, ast.Name) and n.id in names and id(n) not in bare for n in live(function))


class HostRules(ScopedVisitor):
    """Checks names, attributes, calls and statements of everything but kernel bodies."""

    def __init__(self, module: Module, report: Report, *, allow_delegation: bool) -> None:
        super().__init__(module, report)
        self.allow_delegation = allow_delegation
        self.records = Records(module)
        self.depth = 0  # of nested functions.
        self.used = True  # Whether the entry, or the import, can reach the code being visited.

    def check(self) -> None:
        """Reports every broken rule of the module."""
        for statement in self.module.tree.body:
            if is_import(statement, self.module):
                continue
            self.used = not is_main_guard(statement)
            if is_main_guard(statement):
                self.inside(frozenset(), list(statement.body))  # type: ignore[attr-defined]
            else:
                self.visit(statement)

    # --- definitions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        kernel = self.module.kernels.get(node.name) is node
        self.visit_signature(node.args)
        if node.returns is not None:
            self.visit(node.returns)
        for decorator in node.decorator_list:
            self._check_decorator(node, decorator, kernel)
        if kernel:
            return  # `rules/kernel.py` checks its body.
        before = self.used, self.depth
        if self.depth == 0 and self.module.functions.get(node.name) is node:
            self.used = node.name in self.module.reachable
        self.depth += 1
        self.visit_body(node)
        self.used, self.depth = before

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        if self.depth:
            self.report("definition", node, f"`{node.name}` is a coroutine; use a plain `def`")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if self.depth:
            self.report("definition", node, f"class `{node.name}` inside a function; define records at the top level")
        self.generic_visit(node)

    def _check_decorator(self, function: ast.FunctionDef, node: ast.expr, kernel: bool) -> None:
        call = node if isinstance(node, ast.Call) else None
        path = self.module.path(call.func if call else node, self.local)
        arguments = [*call.args, *(k.value for k in call.keywords)] if call else []
        if path == "triton.jit":
            if not kernel:
                message = f"`{function.name}` is a kernel inside another function; kernels are top-level functions"
                self.report("definition", node, message)
            for keyword in call.keywords if call else []:
                if keyword.arg not in JIT_OPTIONS:
                    self.report("autotune", node, f"triton.jit({keyword.arg}=...) is not allowed; leave it out")
        elif kernel and path in _WRAPPERS:
            self._check_hooks(call)
        elif kernel or path not in _PLAIN_DECORATORS:
            allowed = "triton.jit, triton.autotune, triton.heuristics" if kernel else "torch.no_grad, functools.cache"
            text = ast.unparse(node).partition("(")[0]
            self.report("decorator", node, f"`@{text}` on `{function.name}` is not allowed; expected one of {allowed}")
        made = call.func if call else node
        if not self._whole_path(made):  # An expression makes the decorator.
            arguments.append(made)
        for argument in arguments:
            self.visit(argument)

    def _check_hooks(self, call: ast.Call | None) -> None:
        for keyword in call.keywords if call else []:
            if keyword.arg in HOOKS or keyword.arg is None:
                self.report(
                    "autotune", keyword.value, f"`{keyword.arg or '**'}` is not allowed in a tuner; leave it out"
                )

    # --- statements

    def _refuse_try(self, node: ast.Try | ast.TryStar) -> None:
        if self.used:
            self.report("try", node, "`try` can hide a kernel that fails; let the error out")
        self.generic_visit(node)

    visit_Try = visit_TryStar = _refuse_try

    def _refuse_generator(self, node: ast.Yield | ast.YieldFrom | ast.Await) -> None:
        self.report("definition", node, "generators and coroutines keep state between calls; return a list")
        self.generic_visit(node)

    visit_Yield = visit_YieldFrom = visit_Await = _refuse_generator

    def _refuse_import(self, node: ast.Import | ast.ImportFrom) -> None:
        text = ast.unparse(node)
        self.report("import", node, f"`{text}` inside a block or function; move it to the top of the file")

    visit_Import = visit_ImportFrom = _refuse_import

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        if not self.local:
            self.report("top-level", node, f"`{node.target.id} := ...` binds a global inside an expression; use `=`")
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:  # The pattern reads attributes without an attribute expression.
            self.report("attribute", node, f"a pattern on the attribute `{name}`; compare `.{name}` instead")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):  # Not a docstring.
            self.visit(node.value)

    # --- names and attributes

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        if (found := _DUNDER.search(node.value)) and node.value != "__main__":
            self.report("dunder", node, f"the text {found.group()!r} names a private attribute; leave it out")
        if node.value in CODE_OPTIONS:
            self.report("inline-asm", node, f"the launch option {node.value!r} brings in code from elsewhere")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.local or not isinstance(node.ctx, ast.Load):
            if node.id.startswith("__") and node.id != "__all__":
                self.report("dunder", node, f"`{node.id}` may not be set; {_ADVICE['dunder']}")
        elif node.id in self.module.imports:
            self._check_path(node, self.module.imports[node.id])
        elif self.module.defines(node.id):
            pass
        elif _DUNDER.fullmatch(node.id):
            self.report("dunder", node, f"`{node.id}` is not available; {_ADVICE['dunder']}")
        elif hasattr(builtins, node.id) and node.id not in HOST_BUILTINS:
            self.report(
                "builtin", node, f"`{node.id}` is not available to a candidate; it needs numbers and launches only"
            )
        elif "*" in self.module.imports and not hasattr(builtins, node.id):
            self.report("import", node, f"`{node.id}` may come from an `import *`; {_ADVICE['import']}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.visit(node.value)
            return  # `rules/state.py` refuses to set attributes.
        path = self.module.path(node, self.local)
        whole = self._whole_path(node)
        if path is not None:
            self._check_path(node, path)
        elif whole and (rule := refused_rule(whole)):
            # Reported by its whole path, so that a seed which may use one of them lets no other pass.
            self.report(rule, node, f"`{whole}` is not available to host code; {_ADVICE[rule]}")
        else:
            self._check_value_attribute(node)
            self.visit(node.value)

    def _whole_path(self, node: ast.expr) -> str | None:
        """All names of a chain such as `os.path.join` that starts at an import."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.module.imports and node.id not in self.local:
            return ".".join([self.module.imports[node.id], *reversed(names)])
        return None

    def _check_path(self, node: ast.AST, path: str) -> None:
        if path in MODULES:
            self.report("patch", node, f"the module `{path}` is used as a value; name what is needed of it")
            return
        rule = leaf_rule(path)
        if path == "triton.jit":
            self.report("definition", node, "triton.jit is a decorator of top-level functions; write @triton.jit")
        elif path in _WRAPPERS:
            self.report("definition", node, f"{path} is a decorator of kernels; write @{path}(...)")
        elif rule and not (rule == "delegate" and (self.allow_delegation or not self.used)):
            self.report(rule, node, f"`{path}` is not available to host code; {_ADVICE[rule]}")

    def _check_value_attribute(self, node: ast.Attribute) -> None:
        name, root = node.attr, node.value.id if isinstance(node.value, ast.Name) else ""
        if _DUNDER.fullmatch(name):
            self.report("dunder", node, f"`.{name}` is private; {_ADVICE['dunder']}")
        elif name in FRAME_ATTRIBUTES:
            self.report("frame", node, f"`.{name}` reaches into the interpreter; no stack frames or code objects")
        elif name in MEMORY_ATTRIBUTES:
            self.report("memory", node, f"`.{name}` reaches raw memory; pass the tensor itself to the kernel")
        elif root in self.module.kernels and root not in self.local:
            self.report("launch", node, f"`{root}.{name}`: a kernel is launched as {root}[grid](...), nothing else")
        elif root in self.module.functions and root not in self.local:
            self.report("state", node, f"`{root}.{name}`: functions carry no attributes; use arguments")
        elif name in ("format", "format_map"):  # visit_Call knows the texts that may be formatted
            self.report("dunder", node, f"`.{name}` may read attributes that no rule sees; write an f-string")
        elif name in _VALUE_ATTRIBUTES:
            pass
        elif name.removesuffix("_") in TORCH_COMPUTE:
            if self.used and not self.allow_delegation:
                self.report("delegate", node, f"`.{name}` computes with torch on the host; {_ADVICE['delegate']}")
        elif name.startswith("_"):
            self.report("dunder", node, f"`.{name}` is private; {_ADVICE['dunder']}")
        elif name not in self.module.fields:
            self.report("attribute", node, f"`.{name}` is not needed to allocate, view and launch; leave it out")
        elif not self.records.owns(node):
            message = f"`.{name}` is a field of a record, but the object here may be something else; "
            self.report("attribute", node, message + "call the record's class in the same function, or pass the number")

    # --- calls

    def visit_Call(self, node: ast.Call) -> None:
        path = self.module.path(node.func, self.local) or ""
        for keyword in node.keywords:
            if keyword.arg in CODE_OPTIONS:
                self.report("inline-asm", keyword.value, f"the option `{keyword.arg}` brings in code from elsewhere")
            elif keyword.arg in HOOKS:
                self.report("autotune", keyword.value, f"`{keyword.arg}` is not allowed; the evaluator tunes and times")
            elif keyword.arg == "out" and path.startswith("torch.") and self.used and not self.allow_delegation:
                self.report("delegate", keyword.value, f"`{path}(out=...)` writes results; {_ADVICE['delegate']}")
        match node.func:
            case ast.Attribute(value=ast.Constant(value=str(text)), attr="format") if _names_only(text):
                for part in (node.func.value, *node.args, *node.keywords):
                    self.visit(part)
            case _:
                self.generic_visit(node)


def _names_only(text: str) -> bool:
    """Whether a format text uses its arguments as they are: `{0.name}` and `{0[name]}` read what is in them."""
    try:
        fields = list(Formatter().parse(text))
        # Python allows one level of fields in fields.
        inner = [field for _, _, spec, _ in fields for field in Formatter().parse(spec or "")]
    except ValueError:  # It would raise at run time, too.
        return False
    return all(not {".", "["} & set(name or "") for _, name, _, _ in (*fields, *inner))


def check_host(module: Module, report: Report, *, allow_delegation: bool) -> None:
    """Reports every broken rule of the host code.  allow_delegation: torch operators that compute are allowed."""
    check_structure(module, report)
    HostRules(module, report, allow_delegation=allow_delegation).check()
