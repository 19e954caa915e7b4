"""Finds operators that delegate work: `a @ b`, `x * 2`, `x.max()` on values that are surely tensors.

A local data flow follows what is certain: values allocated here, annotated, or used with `.stride()`.  Anything else
passes, because the recorder counts every delegated ATen operator exactly.  The gate answers earlier, with a line.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from typing import Literal

from fitness.frontend.rules.module import FunctionNode, Module, Report, bound_names, parameters
from fitness.frontend.rules.names import TENSOR_METADATA, TENSOR_VIEW_LISTS, TENSOR_VIEWS, TORCH_TENSORS, words

Kind = Literal["tensor", "other"] | None  # None: unknown.
Kinds = ChainMap[str, Kind]  # Branches and inner functions write to a layer of their own, so nothing is copied.

# Only tensors have these attributes, so a parameter used with one is a tensor.
_EVIDENCE = words(
    "shape stride numel contiguous is_contiguous new_empty new_zeros element_size is_cuda ndim device view"
)
_ONLY_TENSOR_VIEWS = TENSOR_VIEWS & words("""
    contiguous view reshape permute unsqueeze squeeze expand expand_as flatten narrow view_as reshape_as movedim
    transpose new_empty new_zeros new_ones new_full new_empty_strided as_strided detach
""")
_COMPUTING_BUILTINS = words("abs sum pow max min round divmod sorted")
_NUMBERS = words("int float bool len str range isinstance")
_IDENTITY = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
_ADVICE = "compute it in a kernel; the host allocates, views and launches"


class TensorFlow:
    """Follows tensors through one function, statement by statement."""

    def __init__(self, module: Module, report: Report) -> None:
        self.module, self.report = module, report

    def function(self, node: FunctionNode, outer: Kinds) -> None:
        """Follows the body of a function.  outer: the kinds of names around it."""
        names = bound_names(node.body)
        kinds: Kinds = outer.new_child(dict.fromkeys(names))
        used_as_tensors = _used_as_tensors(node)
        for parameter in parameters(node.args):
            annotation = parameter.annotation and self.module.path(parameter.annotation)
            tensor = annotation == "torch.Tensor" or (parameter.arg in used_as_tensors and parameter.arg not in names)
            kinds[parameter.arg] = "tensor" if tensor else None
        self.block(node.body, kinds)

    # --- statements

    def block(self, body: list[ast.stmt], kinds: Kinds) -> bool:
        """Follows `body` and updates `kinds`; returns whether every path leaves it early."""
        return any(self.statement(statement, kinds) for statement in body)

    def statement(self, node: ast.stmt, kinds: Kinds) -> bool:
        """Follows a statement and updates `kinds`; returns whether every path leaves the block there."""
        match node:
            case ast.Assign(targets=targets, value=value):
                self.assign(targets, value, kinds)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign([target], value, kinds)
            case ast.AugAssign(target=target, value=value):
                operands = (self.kind(_as_load(target), kinds), self.kind(value, kinds))
                if "tensor" in operands or isinstance(node.op, ast.MatMult):
                    self._refuse(node, "an augmented assignment")
            case ast.If(test=test):
                self.kind(test, kinds)
                self._branches(kinds, node.body, node.orelse)
            case ast.For() | ast.While():
                self._loop(node, kinds)
            case ast.FunctionDef():
                self.function(node, kinds)
                kinds[node.name] = "other"
            case ast.With(items=items, body=body):
                for item in items:
                    self.kind(item.context_expr, kinds)
                return self.block(body, kinds)
            case ast.Match(subject=subject, cases=cases):
                self.kind(subject, kinds)
                self._branches(kinds, *(c.body for c in cases), [])
            case ast.Return() | ast.Raise():
                self._children(node, kinds)
                return True
            case ast.Break() | ast.Continue():
                return True
            case ast.Try() | ast.ClassDef():
                pass  # Other rules refuse them.
            case _:
                self._children(node, kinds)
        return False

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, kinds: Kinds) -> None:
        if isinstance(node, ast.While):
            self.kind(node.test, kinds)
        else:
            self.kind(node.iter, kinds)
            self._forget(node.target, kinds)
        self._branches(kinds, node.body, [])
        self.block(node.orelse, kinds)

    def _branches(self, kinds: Kinds, *bodies: list[ast.stmt]) -> None:
        """Follows each body on a layer of its own; keeps the kinds that agree at the end of all that do not leave."""
        ends = []
        for body in bodies:
            after = kinds.new_child()
            if not self.block(body, after):
                ends.append(after)
        for name in {name for end in ends for name in end.maps[0] if name in kinds}:
            found = {end[name] for end in ends}
            kinds[name] = found.pop() if len(found) == 1 else None

    def assign(self, targets: list[ast.expr], value: ast.expr, kinds: Kinds) -> None:
        """Binds the targets of `a = b, c = value`; follows the value once for all targets."""
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        each = [self.kind(part, kinds) for part in parts]
        whole = None if parts else self.kind(value, kinds)
        for target in targets:
            if not isinstance(target, (ast.Tuple, ast.List)):
                self._set(target, whole, kinds)
                continue
            unknown: list[Kind] = ["other" if whole == "other" else None] * len(target.elts)
            found = each if len(each) == len(target.elts) else unknown
            for part, kind in zip(target.elts, found, strict=True):
                self._set(part, kind, kinds)

    def _set(self, target: ast.expr, kind: Kind, kinds: Kinds) -> None:
        if isinstance(target, ast.Name):
            kinds[target.id] = kind
        elif isinstance(target, ast.Subscript):
            self.kind(_as_load(target), kinds)  # `out[mask] = ...` scatters.
        else:
            self._forget(target, kinds)

    def _forget(self, target: ast.expr, kinds: Kinds) -> None:
        for name in (n for n in ast.walk(target) if isinstance(n, ast.Name)):
            kinds[name.id] = None

    # --- expressions

    def kind(self, node: ast.expr, kinds: Kinds) -> Kind:
        """The certain kind of `node`, None if unknown; reports operators on tensors inside it."""
        match node:
            case ast.Constant() | ast.JoinedStr():
                self._children(node, kinds)
                return "other"
            case ast.Name(id=name):
                return kinds.get(name)
            case ast.NamedExpr(target=target, value=value):
                self.assign([target], value, kinds)
                return kinds.get(target.id)
            case ast.Attribute():
                return self._attribute(node, kinds)
            case ast.Call():
                return self._call(node, kinds)
            case ast.Subscript(value=value, slice=index):
                base = self.kind(value, kinds)
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                if "tensor" in [self.kind(p, kinds) for p in parts] and base == "tensor":
                    self._refuse(node, "indexing by a tensor")
                return base
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.kind(test, kinds)
                one, other = self.kind(body, kinds), self.kind(orelse, kinds)
                return one if one == other else None
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                return self._operator(node, kinds)
            case ast.Lambda(args=args, body=body):
                self.kind(body, kinds.new_child(dict.fromkeys(a.arg for a in parameters(args))))
                return "other"
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = kinds.new_child()
                for generator in node.generators:
                    self.kind(generator.iter, inner)
                    self._forget(generator.target, inner)
                for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                    self.kind(part, inner)
                return "other"
        self._children(node, kinds)
        return None

    def _children(self, node: ast.AST, kinds: Kinds) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.kind(child, kinds)
            else:
                self._children(child, kinds)

    def _path(self, node: ast.expr, kinds: Kinds) -> str | None:
        return self.module.path(node, kinds)

    def _attribute(self, node: ast.Attribute, kinds: Kinds) -> Kind:
        if self._path(node, kinds) is not None:
            return "other"
        return self._of_value(node, self.kind(node.value, kinds))

    def _of_value(self, node: ast.Attribute, base: Kind) -> Kind:
        """The kind of an attribute; `base` is the kind of its object."""
        if base != "tensor":
            return None
        if node.attr in ("T", "mT"):
            return "tensor"
        if node.attr not in TENSOR_VIEWS | TENSOR_VIEW_LISTS | TENSOR_METADATA:
            self._refuse(node, f"`.{node.attr}`")
        return "other"

    def _call(self, node: ast.Call, kinds: Kinds) -> Kind:
        arguments = [self.kind(a, kinds) for a in (*node.args, *(k.value for k in node.keywords))]
        path = self._path(node.func, kinds)
        if path is not None:
            return "tensor" if path.startswith("torch.") and path.removeprefix("torch.") in TORCH_TENSORS else None
        match node.func:
            case ast.Attribute(value=value, attr=attr):
                base = self.kind(value, kinds)
                self._of_value(node.func, base)
                if attr in (TENSOR_VIEWS if base == "tensor" else _ONLY_TENSOR_VIEWS):
                    return "tensor"
                return "other" if attr in TENSOR_METADATA else None
            case ast.Name(id=name) if name in _COMPUTING_BUILTINS and name not in kinds:
                if "tensor" in arguments:
                    self._refuse(node, f"`{name}(...)`")
                return None
            case ast.Name(id=name) if name not in kinds:
                return "other" if name in _NUMBERS else None
        self.kind(node.func, kinds)
        return None

    def _operator(self, node: ast.BinOp | ast.UnaryOp | ast.Compare, kinds: Kinds) -> Kind:
        match node:
            case ast.BinOp(left=left, right=right):
                operands = [self.kind(left, kinds), self.kind(right, kinds)]
                computes = isinstance(node.op, ast.MatMult) or "tensor" in operands
            case ast.UnaryOp(operand=operand, op=op):
                operands = [self.kind(operand, kinds)]
                computes = "tensor" in operands and not isinstance(op, ast.Not)
            case ast.Compare(left=left, comparators=others, ops=ops):
                operands = [self.kind(part, kinds) for part in (left, *others)]
                computes = "tensor" in operands and not all(isinstance(op, _IDENTITY) for op in ops)
        if computes:
            self._refuse(node, "an operator on a tensor")
            return "tensor"
        return "other" if set(operands) == {"other"} or isinstance(node, ast.Compare) else None

    def _refuse(self, node: ast.AST, what: str) -> None:
        self.report("delegate", node, f"{what} computes with torch on the host; {_ADVICE}")


def _used_as_tensors(function: FunctionNode) -> set[str]:
    """Names on which the function uses an attribute that only tensors have."""
    return {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in _EVIDENCE and isinstance(node.value, ast.Name)
    }


def _as_load(target: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
    """The target of an assignment as an expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def check_tensors(module: Module, report: Report) -> None:
    """Reports operators on tensors in the functions that the entry reaches."""
    flow = TensorFlow(module, report)
    for name, function in module.functions.items():
        if name in module.reachable:
            flow.function(function, ChainMap())
