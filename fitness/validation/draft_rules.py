"""Checks what a task.py that a model wrote may say, over the syntax tree before any of it runs.

Once accepted it runs outside of the sandbox, like every task, so these rules must be sufficient.  They are allow-lists:
kinds of syntax, builtins, attributes, and names of torch and math.  The allowed code cannot reach files, processes, the
network, other modules or the objects of its callers.  It only has torch's computing functions, tensors, numbers and
containers.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import math
import types
from collections.abc import Iterator

from evo.core.records import Finding
from fitness.frontend.gate import read_tree
from fitness.frontend.plan import ITEMSIZE
from fitness.frontend.rules.names import words

CASE = "fitness.Case"
MODULES = words("torch torch.nn torch.nn.functional torch.special torch.linalg torch.fft math")

_SYNTAX = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For,
    ast.While, ast.If, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Raise, ast.Lambda, ast.BoolOp,
    ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.List, ast.Tuple, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.comprehension, ast.Compare, ast.Call, ast.keyword, ast.JoinedStr, ast.FormattedValue,
    ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.Name, ast.NamedExpr, ast.Import,
    ast.ImportFrom, ast.alias, ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop,
)  # fmt: skip
# `input` reads a line from the terminal at worst, and is a common name for an argument.
_BUILTINS = words("""
    abs all any bool bytes callable chr dict divmod enumerate filter float format frozenset hash id input int isinstance
    iter len list map max min next ord pow range repr reversed round set slice sorted str sum tuple zip
    ArithmeticError AssertionError IndexError KeyError NotImplementedError RuntimeError TypeError ValueError
""")
_TORCH = words("""
    Tensor Size device dtype finfo iinfo is_tensor inf nan pi e newaxis strided contiguous_format preserve_format
    channels_last
""")
_NOT_OF_TORCH = words("from_file from_numpy")
# Raw memory, numpy (whose arrays write files), callables per element, hooks.
_NOT_OF_TENSORS = words("""
    numpy data data_ptr const_data_ptr storage untyped_storage storage_type set_ resize_ resize share_memory_ apply_
    map_ map2_ module_load register_hook register_post_accumulate_grad_hook backward grad_fn grad
""")
# Of cases, dicts, lists, sets, strings, dtypes and named results.
_OF_OTHERS = words("""
    name role axes cpu_axes on_cpu get items keys values append extend insert pop index count sort reverse copy update
    add union intersection difference join split strip startswith endswith lower upper replace removeprefix removesuffix
    device eps tiny smallest_normal resolution bits min max itemsize is_floating_point is_integer bit_length type
    Q R U S V Vh L P LU H eigenvalues eigenvectors logabsdet sign solution
""")


def check_task(source: str) -> list[Finding]:
    """Returns broken rules of the text of a task.py, by line; empty without any.  Nothing of it is executed."""
    tree = read_tree(source)
    if isinstance(tree, Finding):
        return [tree]
    return sorted(set(_Reading(tree).findings()), key=lambda f: (f.line, f.rule, f.message))


class _Reading:
    """One walk over a tree; `_modules`: which names of the file are modules, by name."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._modules: dict[str, str] = {}
        self._cases: set[str] = set()  # names of the class Case
        self._allowed: set[int] = set()  # nodes that name a module in an allowed place

    def findings(self) -> Iterator[Finding]:
        top = {id(node) for node in self._tree.body}
        for node in ast.walk(self._tree):  # breadth first: imports of the top level come before their uses
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._import(node, id(node) in top)
        for node in ast.walk(self._tree):
            for rule, message in self._broken(node):
                yield Finding(rule, getattr(node, "lineno", 0), message)

    def _import(self, node: ast.Import | ast.ImportFrom, top: bool) -> Iterator[Finding]:
        for alias in node.names:
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            path, name = origin + alias.name, alias.asname or alias.name.partition(".")[0]
            for rule, message in self._bound(name, imported=True):
                yield Finding(rule, node.lineno, message)
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            if not top or relative or not self._bind(path, name, origin, bool(alias.asname)):
                yield Finding(
                    "import", node.lineno, f"{ast.unparse(node)}: a task imports torch, math and `from fitness import "
                    "Case` at its top level, nothing else"
                )  # fmt: skip

    def _bind(self, path: str, name: str, origin: str, renamed: bool) -> bool:
        """Returns whether `path` may be imported; `name` then stands for it."""
        module, _, leaf = path.rpartition(".")
        if path == CASE and origin:
            self._cases.add(name)
        elif path in MODULES:
            self._modules[name] = path if renamed or origin else name
        else:
            return path == "__future__.annotations" or (bool(origin) and module in MODULES and _offers(module, leaf))
        return True

    def _broken(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if not isinstance(node, _SYNTAX):
            yield "syntax", f"{type(node).__name__} is not needed in a task; write plain functions and assignments"
        match node:
            case ast.FunctionDef():
                if node.decorator_list:
                    yield "decorator", "functions of a task carry no decorators"
                yield from self._bound(node.name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield from self._bound(name)
            case ast.Name(id=name):
                yield from self._named(node, name)
            case ast.Attribute():
                yield from self._attribute(node)
            case ast.Call():
                yield from self._call(node)

    def _bound(self, name: str, imported: bool = False) -> Iterator[tuple[str, str]]:
        # A name like __builtins__ would change what all others mean.
        if name.startswith("__") or (hasattr(builtins, name) and name not in _BUILTINS):
            yield "builtin", f"{name} must not be redefined; use another name"
        if not imported and (name in self._modules or name in self._cases):
            yield "name", f"{name} is imported; use another name for the value"

    def _named(self, node: ast.Name, name: str) -> Iterator[tuple[str, str]]:
        if id(node) in self._allowed:
            return
        if name in self._modules:
            yield "name", f"the module {name} may only be used as `{name}.function`"
        elif name in self._cases:
            yield "name", f"{name} may only be called"
        elif name.startswith("__") or (hasattr(builtins, name) and name not in _BUILTINS):
            yield "builtin", f"{name} is not available: a task draws inputs and computes a reference, nothing else"

    def _attribute(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        module = self._module(node.value)
        if module is not None:
            self._allowed.add(id(node.value))
        if node.attr.startswith("_"):
            yield "private", f"the private name {node.attr} is not available"
        elif not isinstance(node.ctx, ast.Load):
            yield "patch", f"{ast.unparse(node)} must not be assigned to: attributes are not changed"
        elif module is None:
            if node.attr not in _attributes():
                yield "attribute", f"the attribute .{node.attr} is not available in a task"
        elif f"{module}.{node.attr}" in MODULES:
            if id(node) not in self._allowed:
                yield "name", f"the module {ast.unparse(node)} may only be used to name a function of it"
        elif not _offers(module, node.attr):
            yield "library", f"{module}.{node.attr} is not available: a task uses functions that compute on tensors"

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        match node:
            case ast.Call(func=ast.Name(id="getattr") as f, args=[ast.Name() as m, ast.Attribute(attr="dtype")]):
                if self._module(m) == "torch" and not node.keywords:  # a case's dtype is the name of one, see below
                    self._allowed |= {id(f), id(m)}
            case ast.Call(func=ast.Name(id=name) as f) if name in self._cases:
                self._allowed.add(id(f))
                dtypes = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "dtype")]
                spread = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
                if spread or not all(isinstance(d, ast.Constant) and d.value in ITEMSIZE for d in dtypes):
                    yield "case", f"a Case is written out, its dtype as one of the words {', '.join(ITEMSIZE)}"

    def _module(self, node: ast.AST) -> str | None:
        """Returns the path of the module that an expression names; None for other expressions."""
        match node:
            case ast.Name(id=name):
                return self._modules.get(name)
            case ast.Attribute(value=value, attr=attr):
                path = f"{self._module(value)}.{attr}"
                return path if path in MODULES else None
        return None


@functools.cache
def _offers(module: str, name: str) -> bool:
    """Returns whether a task may name this member of a module: computing functions, dtypes and constants."""
    import torch

    found = getattr(importlib.import_module(module), name, None)
    if name.startswith("_") or found is None or isinstance(found, types.ModuleType):
        return False
    if module == "torch":
        computes = name in torch.functional.__all__ or hasattr(torch._C._VariableFunctions, name)
        return isinstance(found, torch.dtype) or name in _TORCH or (computes and name not in _NOT_OF_TORCH)
    if module == "math":
        return callable(found) or isinstance(found, type(math.pi))
    written_here = isinstance(found, types.FunctionType) and found.__module__ == module == "torch.nn.functional"
    return written_here or isinstance(found, types.BuiltinFunctionType)


@functools.cache
def _attributes() -> frozenset[str]:
    """Returns attributes of values that a task may name."""
    import torch

    return (frozenset(n for n in dir(torch.Tensor) if not n.startswith("_")) - _NOT_OF_TENSORS) | _OF_OTHERS
