"""Checks kernel bodies: Triton compiles them, and its interpreter executes them as Python."""

from __future__ import annotations

import ast
import builtins
import re

from fitness.frontend.rules.module import Module, Report, ScopedVisitor
from fitness.frontend.rules.names import (
    FRAME_ATTRIBUTES,
    KERNEL_ATTRIBUTES,
    KERNEL_BUILTINS,
    KERNEL_LANGUAGE,
    MODULES,
    leaf_rule,
)

_DUNDER = re.compile(r"__\w+__")
_TRITON = ("triton.cdiv", "triton.next_power_of_2")
_NAN_RULES = ("ALL", "NONE")  # of triton.language.PropagateNan: what tl.maximum, minimum and clamp make of NaN
_FORBIDDEN = (
    ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.Lambda, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.AsyncFor, ast.Delete, ast.Raise, ast.Yield,
    ast.YieldFrom, ast.Await, ast.Match,
)  # fmt: skip


class KernelRules(ScopedVisitor):
    """Checks names, attributes and statements of one kernel's body."""

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _FORBIDDEN):
            self.report(
                "kernel", node, f"`{type(node).__name__.lower()}` has no place in a kernel; use plain statements"
            )
        super().visit(node)  # A lenient task may inherit that finding, but not those inside.

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _DUNDER.search(node.value):
            self.report("dunder", node, f"the text {node.value!r} names a private attribute; leave it out")

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if name.startswith("__"):
            self.report("dunder", node, f"`{name}` is not available in kernels; choose a plain name")
        elif name in self.local:
            pass
        elif name in self.module.imports:
            self._check_path(node, self.module.imports[name])
        elif name in self.module.functions:
            self.report("kernel", node, f"`{name}` is a host function; make it a @triton.jit function to call it here")
        elif not self.module.defines(name) and hasattr(builtins, name) and name not in KERNEL_BUILTINS:
            self.report("kernel", node, f"the builtin `{name}` is not available in kernels; use triton.language")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.report("patch", node, f"`{ast.unparse(node)} = ...` sets an attribute; kernels store through pointers")
            return
        path = self.module.path(node, self.local)
        if path is not None:
            self._check_path(node, path)
            return
        if node.attr in _NAN_RULES and self.module.path(node.value, self.local) == "triton.language.PropagateNan":
            return
        if node.attr in FRAME_ATTRIBUTES:
            self.report("frame", node, f"`.{node.attr}` reaches into the interpreter; no frames or code objects")
        elif node.attr.startswith("_"):
            self.report("dunder", node, f"`.{node.attr}` is private; use public attributes")
        elif node.attr not in KERNEL_ATTRIBUTES:  # Fields of records are refused too: kernels get plain tuples.
            self.report("kernel", node, f"`.{node.attr}` is no attribute of tensors in a kernel; use triton.language")
        self.visit(node.value)

    def _check_path(self, node: ast.AST, path: str) -> None:
        source = path.rpartition(".")[0]
        rule = None if path in MODULES else leaf_rule(path)
        if path in MODULES:
            self.report("patch", node, f"the module `{path}` is used as a value; name what is needed of it")
        elif rule == "inline-asm":
            self.report("inline-asm", node, f"`{path}` is not allowed; write it with triton.language")
        elif (source not in KERNEL_LANGUAGE and path not in _TRITON) or rule is not None:
            self.report("kernel", node, f"`{path}` is not available in kernels; use triton.language")


def check_kernels(module: Module, report: Report) -> None:
    """Reports every broken rule of all kernel bodies."""
    for kernel in module.kernels.values():
        KernelRules(module, report).visit_body(kernel)
