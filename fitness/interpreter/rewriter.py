"""Rewrites a kernel's body as Python that means what the source means to Triton's compiler.

The compiler reads the same source as Python, but differently (`triton/compiler/code_generator.py`).  It looks names up
when they are read, leaves out some statements, evaluates others twice, and turns what depends on a tensor into a
tensor.  Each such construct is rewritten here, or refused: a kernel must not find out that it is interpreted.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from fitness.interpreter.operations import BlockCondition, unwrap

# Types of globals that a kernel may read; the compiler refuses others.
_READABLE = (tl.constexpr, tl.dtype, ModuleType, JITFunction)
_STATIC_ASSERT = tl.static_assert  # the original: it is replaced while the language is patched.
_BUILTINS = {"range", "min", "max", "float", "int", "len", "print", "list"}


def rewritten(function: ast.FunctionDef, space: Mapping[str, Any]) -> ast.FunctionDef:
    """`function` rewritten for the interpreter.

    space: the function's globals.  The result uses the names of `HELPERS`, `__to_tensor`, `__unwrap` and `__either`.
    Raises NotImplementedError for constructs that mean something else to the compiler and cannot be rewritten.
    """
    _check_parameters(function)
    if not str(space.get("__name__")).startswith("triton."):  # Triton's own functions mean the same either way.
        _check_names(function, space)
    return Rewriter(function, space).visit(function)


def _refuse(node: ast.AST, message: str) -> NotImplementedError:
    return NotImplementedError(f"{message}: `{ast.unparse(node).splitlines()[0]}`")


def _check_parameters(function: ast.FunctionDef) -> None:
    """Refuses `/`, `*` and `**` parameters: the compiler binds the others as if these did not exist."""
    arguments = function.args
    if arguments.posonlyargs or arguments.kwonlyargs or arguments.kwarg:
        raise NotImplementedError(
            f"{function.name}: a kernel or helper cannot have parameters before `/`, after `*` or as `**`"
        )


def _check_names(function: ast.FunctionDef, space: Mapping[str, Any]) -> None:
    """Refuses globals that a branch or loop assigns before the function itself does.

    To Python such a name is local in the whole function.  To the compiler it is local only after the assignment, within
    that branch or loop; everywhere else it is the global.
    """
    settled: set[str] = set()  # assigned before, outside of branches and loops.
    for statement in function.body:
        stored = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if isinstance(statement, (ast.If, ast.For, ast.While)):
            shared = stored & _BUILTINS | {name for name in stored if _is_readable(space.get(name))}
            if shared - settled:
                name = min(shared - settled)
                raise NotImplementedError(
                    f"{function.name}: {name!r} is assigned in a branch or loop and is something global too; "
                    "call it otherwise, or assign it before"
                )
        settled |= stored


def _is_readable(value: Any) -> bool:
    origin = getattr(value, "__module__", None)
    return isinstance(value, _READABLE) or (isinstance(origin, str) and origin.startswith("triton"))


class Rewriter(ast.NodeTransformer):
    """Rewrites or refuses each construct of one function that the compiler reads differently."""

    def __init__(self, function: ast.FunctionDef, space: Mapping[str, Any]) -> None:
        self._function, self._space = function, space
        self._returns = sum(isinstance(node, ast.Return) for node in ast.walk(function))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list, node.returns = [], None
        for parameter in _parameters(node.args):
            parameter.annotation = None
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]  # The caller binds them.
        node.body = [self.visit(statement) for statement in node.body]
        return node

    # --- assignments -------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = _call("__to_tensor", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            raise _refuse(node, "an annotation without a value")
        if self._resolved(node.annotation) is not tl.constexpr:  # The compiler would evaluate the value twice.
            raise _refuse(node, "a variable that is annotated as anything but tl.constexpr")
        return ast.Assign([node.target], _call("__unwrap", self.visit(node.value)))

    def _resolved(self, node: ast.expr) -> Any:
        """The global value of a name, or of an attribute of one; None for anything else."""
        if isinstance(node, ast.Name):
            return self._space.get(node.id)
        return getattr(self._resolved(node.value), node.attr, None) if isinstance(node, ast.Attribute) else None

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.Assign([node.target], _call("__to_tensor", value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        raise _refuse(node, "an assignment within an expression")

    # --- control flow ------------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = _call("__truth", node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.visit_For(node)
        node.test = _call("__truth", node.test)
        return node

    def visit_For(self, node: ast.For | ast.While) -> ast.AST:
        if node.orelse:
            raise _refuse(node, "`else` of a loop")
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return _call("__either", node.test, _later(node.body), _later(node.orelse))

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self._returns > 1:
            node.value = _call("__one_of_several", node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Keeps the operands of an assertion only: like `tl.device_assert` it is compiled in debug builds alone."""
        self.generic_visit(node)
        operands = [node.test] if node.msg is None else [node.test, node.msg]
        return ast.Expr(ast.Tuple(operands, ast.Load()))

    # --- expressions -------------------------------------------------------------------------------------------------

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return _call("__and" if isinstance(node.op, ast.And) else "__or", *map(_later, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("__not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Refuses `is` of two values, since equal numbers may or may not be one object."""
        singletons = (None, True, False)
        sides = [node.left, *node.comparators]
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops) and not any(
            isinstance(side, ast.Constant) and any(side.value is one for one in singletons) for side in sides
        ):
            raise _refuse(node, "`is` of what is neither None, True nor False")
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Refuses what the compiler reads differently: it ignores conditions, and the variable is the function's."""
        (first, *more) = node.generators
        if more or first.ifs or not isinstance(first.target, ast.Name):
            raise _refuse(node, "a comprehension with conditions, several loops or several variables")
        name = first.target.id
        inside, everywhere = (sum(map(_is_name(name), ast.walk(tree))) for tree in (node, self._function))
        if everywhere != inside or any(p.arg == name for p in _parameters(self._function.args)) or name in self._space:
            raise _refuse(node, f"a comprehension whose variable {name!r} is used elsewhere too; call it otherwise")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Refuses calls in the message of `tl.static_assert`: the compiler evaluates it only if the assertion fails."""
        if self._resolved(node.func) in (_STATIC_ASSERT, tl.static_assert):
            messages = [*node.args[1:], *(k.value for k in node.keywords)]
            if any(isinstance(part, ast.Call) for message in messages for part in ast.walk(message)):
                raise _refuse(node, "a message of tl.static_assert that calls something")
        return self.generic_visit(node)


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """All parameters of the function; `_check_parameters` refused the other kinds."""
    yield from arguments.args
    if arguments.vararg is not None:
        yield arguments.vararg


def _is_name(name: str) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Name) and node.id == name


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


# --- functions that rewritten kernels call ---------------------------------------------------------------------------


def _and(*terms: Callable[[], Any]) -> Any:
    return _connected(terms, stop_at=False, connect=lambda a, b: a.logical_and(b))


def _or(*terms: Callable[[], Any]) -> Any:
    return _connected(terms, stop_at=True, connect=lambda a, b: a.logical_or(b))


def _connected(terms: Sequence[Callable[[], Any]], stop_at: bool, connect: Callable[[Any, Any], Any]) -> Any:
    """The value of `and` or `or`: constants short-circuit at compile time, tensors are combined elementwise."""
    tensors = []
    for term in terms:
        value = unwrap(term())
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is stop_at:
            return value
    if not tensors:
        return value
    result = tensors[0]
    for other in tensors[1:]:
        result = connect(result, other)
    return result


def _not(value: Any) -> Any:
    value = unwrap(value)
    return value.__not__() if isinstance(value, tl.tensor) else not value


def truth(condition: Any) -> Any:
    """The condition of an `if` or `while` of a kernel; raises BlockCondition for a block of several elements."""
    if isinstance(condition, tl.tensor) and condition.handle.data.size != 1:
        raise BlockCondition("a condition on a block of more than one element; use tl.where")
    return condition


def _one_of_several(value: Any) -> Any:
    """The result of a function with several `return`s.

    If a tensor decides which `return` is taken, a number becomes a tensor in the compiler.  Raises NotImplementedError
    for numbers, since it is unknown here what decided.
    """
    for part in value if isinstance(value, (tuple, list, tl.tuple)) else (value,):
        if isinstance(unwrap(part), (builtins.bool, builtins.int, builtins.float)):
            raise NotImplementedError(f"a function with several `return`s gives the number {part}; return a tensor")
    return value


HELPERS: Mapping[str, Callable[..., Any]] = {
    "__and": _and,
    "__or": _or,
    "__not": _not,
    "__truth": truth,
    "__one_of_several": _one_of_several,
}
