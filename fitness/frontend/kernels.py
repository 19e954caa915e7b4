"""Extracts the `@triton.jit` functions of a candidate, without its host code.

This is trusted code: it parses the candidate's source and never imports it.  It keeps imports of Triton's own modules,
top-level functions decorated with `triton.jit`, and the module constants that the recorder saw as plain scalars.
Everything else (autotune and heuristics decorators, wrappers, classes, top-level statements) is blanked out, so that
line numbers stay those of the candidate.  Executing the rest defines functions and nothing more.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from evo.core import syntax
from evo.core.records import Verdict
from fitness.frontend.reach import check_reach
from fitness.sandbox.jobs import JobError

MODULE = "candidate_kernels"  # part of Triton's cache key, hence the same for every candidate.

# Builtins that a kernel may use: those of Triton's compiler, plus `bool` and `abs` for Triton's own functions.  The
# interpreter runs kernels as Python, so this list also keeps `__import__` and `open` away from them.
BUILTINS = {
    "abs",
    "bool",
    "float",
    "getattr",
    "hasattr",
    "int",
    "isinstance",
    "len",
    "list",
    "max",
    "min",
    "print",
    "range",
}

_JIT = {"triton.jit", "triton.runtime.jit", "triton.runtime.jit.jit"}
# Files that torch.compile wrote import `libdevice`, which is Triton's, and helper kernels of PyTorch's from here.
_INDUCTOR, _HELPERS = "torch._inductor.runtime", "triton_helpers"
# Earlier versions of Triton had host code here that chooses among configurations (`frontend/module.py`); no kernels.
EARLIER = "triton.ops"
# Options of triton.jit that change the machine code; `repr` and `launch_metadata` are host callables and do not.
_JIT_OPTIONS = {"do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "version"}
_DTYPES = {
    key: dtype for name, dtype in vars(tl).items() if isinstance(dtype, tl.dtype) for key in (name, dtype.name)
}  # The keys are both names of a dtype, e.g. float16 and fp16.


def load_kernels(source: str, constants: Mapping[str, Any], scratch: Path) -> dict[str, JITFunction]:
    """The `@triton.jit` functions of `source` by name, defined in `scratch`/kernels.py.

    constants: the scalars that kernels use as globals (`{"dtype": "fp16"}` stands for `tl.float16`).  They are bound as
    `tl.constexpr`, because Triton refuses other globals.

    Raises JobError(COMPILE_ERROR) if the source cannot be parsed, imports a Triton module that does not exist, or needs
    host code to define a kernel.  Raises JobError(REJECTED) if a kernel names anything outside Triton's language.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError) as error:
        raise JobError(Verdict.COMPILE_ERROR, f"not Python: {error}", getattr(error, "lineno", 0) or 0) from error
    imports = list(_imports(tree.body))
    names = _imported_names(imports)
    functions = [
        (f, jit) for f in tree.body if isinstance(f, ast.FunctionDef) and (jit := _jit_decorator(f, names)) is not None
    ]
    path = scratch / "kernels.py"
    path.write_text(_blanked(source, imports, [f for f, _ in functions]), encoding="utf-8")
    module = _new_module(path)
    for node in imports:
        _execute(node, module, path)
    imported = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    aliases = {n: v for n, v in constants.items() if isinstance(v, dict) and "jit" in v}
    for name, value in constants.items():
        if name not in aliases and _is_free(name):
            vars(module)[name] = tl.constexpr(argument(value, {}))
    kernels: dict[str, JITFunction] = {}
    for function, jit in functions:
        options = _jit_options(jit)
        check_reach(function, imported, _HELPERS)
        _execute(_bare(function, names, set(constants)), module, path)
        kernels[function.name] = vars(module)[function.name] = JITFunction(vars(module)[function.name], **options)
    vars(module).update((n, argument(v, kernels)) for n, v in aliases.items() if _is_free(n))
    return kernels


def _is_free(name: str) -> bool:
    """Whether a constant may have that name: an identifier that Python itself does not use."""
    return name.isidentifier() and not name.startswith("__")


@dataclass(frozen=True)
class KernelSource:
    """A kernel and everything besides its arguments that decides how it compiles."""

    digest: str  # Hash of its own text, of the kernels that it calls and of the imports.
    names: frozenset[str]  # All names in that text.
    constexprs: frozenset[str]  # Parameters annotated as constexpr: each of their values needs a build.
    line: int  # Line of its `def`.


def kernel_sources(source: str) -> Mapping[str, KernelSource]:
    """The kernels of `source` by name, each computed on first access; empty if the source cannot be parsed."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return {}
    return _KernelSources(tree, source.split("\n"))


class _KernelSources(Mapping[str, KernelSource]):
    """The texts of a source, computed on access: it may have thousands of functions, and few are launched."""

    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        imports = list(_imports(tree.body))
        self._imported = _imported_names(imports)
        self._head = "\n".join(map(ast.unparse, imports))
        self._nodes: dict[str, ast.FunctionDef] = {}
        self._texts: dict[str, str] = {}
        self._mentioned: dict[str, set[str]] = {}
        self._found: dict[str, KernelSource] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (jit := _jit_decorator(node, self._imported)) is not None:
                self._nodes[node.name] = node
                self._mentioned[node.name] = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                body = lines[node.lineno - 1 : node.end_lineno]
                self._texts[node.name] = "\n".join([f"@{ast.unparse(jit)}", *body])

    def __getitem__(self, name: str) -> KernelSource:
        if name not in self._found:
            node, reached = self._nodes[name], self._with_callees(name)
            text = "\n".join([self._head, *(self._texts[n] for n in self._texts if n in reached)])
            digest = hashlib.sha256(text.encode()).hexdigest()
            names = frozenset(n for r in reached for n in self._mentioned[r])
            self._found[name] = KernelSource(digest, names, _constexprs(node, self._imported), node.lineno)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def _with_callees(self, name: str) -> set[str]:
        """The kernel and all that it calls, directly or not."""
        reached, ahead = {name}, [name]
        while ahead:
            new = (self._mentioned[ahead.pop()] & self._texts.keys()) - reached
            reached |= new
            ahead += new
        return reached


def _constexprs(function: ast.FunctionDef, names: Mapping[str, str]) -> frozenset[str]:
    """Parameters that are annotated as `tl.constexpr`, whatever name it was imported under."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    annotated = ((p.arg, dotted(p.annotation, names) or ast.unparse(p.annotation)) for p in every if p.annotation)
    return frozenset(name for name, annotation in annotated if "constexpr" in annotation)


def argument(value: Any, kernels: Mapping[str, JITFunction]) -> Any:
    """The Python value of a decoded plan argument; tensors (TensorRef) and plain values are returned as they are."""
    if isinstance(value, (tuple, list)):
        return tuple(argument(v, kernels) for v in value)
    if not isinstance(value, dict):
        return value
    match value:
        case {"dtype": str(name)} if name in _DTYPES:
            return _DTYPES[name]
        case {"jit": str(name)} if name in kernels:
            return kernels[name]
        case {"f": str(number)}:
            return float(number)
    raise JobError(
        Verdict.UNSUPPORTED,
        f"argument {value!r} names neither a dtype of triton.language nor a top-level @triton.jit function",
    )


def get_kernel(kernels: Mapping[str, JITFunction], name: str, line: int = 0) -> JITFunction:
    """`kernels[name]`.  Raises JobError(UNSUPPORTED), which lists the kernels there are."""
    if name not in kernels:
        raise JobError(
            Verdict.UNSUPPORTED,
            f"launched kernel {name!r} is not a top-level function decorated with @triton.jit; "
            f"found: {', '.join(kernels) or 'none'}",
            line,
        )
    return kernels[name]


# --- what is kept ----------------------------------------------------------------------------------------------------


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports of Triton modules at the top level; of a `try`, those of the first branch whose modules exist."""
    for node in body:
        match node:
            case ast.Import():
                kept = [a for a in node.names if _is_triton(a.name)]
                if kept:
                    yield ast.copy_location(ast.Import(kept), node)
            case ast.ImportFrom(module=str(module), level=0) if _is_triton(module):
                yield node
            case ast.ImportFrom(module=str(module), level=0) if module == f"{_INDUCTOR}.{_HELPERS}":
                kept = [a for a in node.names if a.name == "libdevice"]
                if kept:
                    yield ast.copy_location(ast.ImportFrom("triton.language.extra", kept, 0), node)
            case ast.ImportFrom(module=str(module), level=0) if module == _INDUCTOR:
                kept = [a for a in node.names if a.name == _HELPERS]
                if kept:
                    yield ast.copy_location(ast.ImportFrom(_INDUCTOR, kept, 0), node)
            case ast.Try():
                branches = [list(_imports(b)) for b in (node.body, *(h.body for h in node.handlers))]
                yield from next((b for b in branches if b and all(map(_exists, b))), [])


def _is_triton(module: str) -> bool:
    return (module == "triton" or module.startswith("triton.")) and not f"{module}.".startswith(f"{EARLIER}.")


def _exists(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.Import):
        return all(_is_module(a.name) for a in node.names)
    try:
        found = importlib.import_module(str(node.module))
    except ImportError:
        return False
    # A package has a module as an attribute only after its import; this test has the same result in every process.
    return all(a.name == "*" or hasattr(found, a.name) or _is_module(f"{node.module}.{a.name}") for a in node.names)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # its parent is not a package
        return False


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted Triton name, as in {"tl": "triton.language"}, of the imports that kernels see."""
    return _imported_names(list(_imports(tree.body)))


def _imported_names(imports: list[ast.Import | ast.ImportFrom]) -> dict[str, str]:
    """Local name -> dotted Triton name, as in {"tl": "triton.language"}."""
    names = {}
    for node in imports:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif alias.asname:
                names[alias.asname] = alias.name
            else:
                names["triton"] = "triton"
    return names


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full dotted name of an expression like `tl.float32`, "" if it does not start at a Triton import."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _jit_decorator(function: ast.FunctionDef, names: Mapping[str, str]) -> ast.expr | None:
    for decorator in function.decorator_list:
        callee = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted(callee, names) in _JIT:
            return decorator
    return None


def _jit_options(decorator: ast.expr) -> dict[str, Any]:
    """The literal keyword options of `@triton.jit(...)`."""
    if not isinstance(decorator, ast.Call):
        return {}
    options = {}
    for keyword in decorator.keywords:
        if keyword.arg in ("repr", "launch_metadata"):
            continue
        try:
            if keyword.arg not in _JIT_OPTIONS:
                raise ValueError("unknown option")
            options[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except ValueError as error:
            message = (
                f"@triton.jit({ast.unparse(keyword)}): options must be literals of {', '.join(sorted(_JIT_OPTIONS))}"
            )
            raise JobError(Verdict.COMPILE_ERROR, message, decorator.lineno) from error
    return options


def _blanked(source: str, imports: list[ast.Import | ast.ImportFrom], functions: list[ast.FunctionDef]) -> str:
    """The source with only these imports and functions, each on its original line."""
    original = source.split("\n")
    lines = [""] * len(original)
    for node in imports:
        text = ast.unparse(node)
        lines[node.lineno - 1] = f"{lines[node.lineno - 1]}; {text}" if lines[node.lineno - 1] else text
    for function in functions:
        first, last = function.lineno - 1, function.end_lineno or function.lineno
        lines[first:last] = original[first:last]
    return "\n".join(lines) + "\n"


# --- definition ------------------------------------------------------------------------------------------------------


def _new_module(path: Path) -> ModuleType:
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    python = importlib.import_module("builtins")
    vars(module)["__builtins__"] = {name: getattr(python, name) for name in BUILTINS}
    sys.modules[MODULE] = module
    return module


def _execute(node: ast.stmt, module: ModuleType, path: Path) -> None:
    """Runs one kept statement.  Imports are done here, as the module itself has no `__import__`."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        space: dict[str, Any] = {}
    else:
        space = vars(module)
    try:
        exec(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True), space)
    except (ImportError, NameError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise JobError(Verdict.COMPILE_ERROR, f"{ast.unparse(node).splitlines()[0]}: {error}", node.lineno) from error
    if space is not vars(module):
        vars(module).update((k, _kernels_of(v)) for k, v in space.items() if k != "__builtins__")


def _kernels_of(value: Any) -> Any:
    """PyTorch's module of helpers reduced to its kernels, as the rest leads to all of PyTorch; other values as is."""
    if getattr(value, "__name__", "") != f"{_INDUCTOR}.{_HELPERS}":
        return value
    found = ModuleType(_HELPERS)
    vars(found).update((name, member) for name, member in vars(value).items() if isinstance(member, JITFunction))
    return found


def _bare(function: ast.FunctionDef, names: Mapping[str, str], constants: set[str]) -> ast.FunctionDef:
    """The function without decorators, with annotations and defaults that need no host code."""
    arguments = function.args
    for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if parameter.annotation is not None and not isinstance(parameter.annotation, ast.Constant):
            parameter.annotation = _bare_annotation(parameter.annotation, names)
    for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
        if not _is_constant(default, names, constants):
            raise JobError(
                Verdict.COMPILE_ERROR,
                f"default {ast.unparse(default)!r} of {function.name!r} must be a literal or a recorded constant",
                default.lineno,
            )
    bare = ast.FunctionDef(function.name, arguments, function.body, [], None, function.type_comment)
    if sys.version_info >= (3, 12):
        bare.type_params = []
    return ast.copy_location(bare, function)


def _bare_annotation(annotation: ast.expr, names: Mapping[str, str]) -> ast.expr | None:
    if dotted(annotation, names):
        return annotation
    # Something like `tl.constexpr[int]` or `Optional[tl.constexpr]`.  Triton needs only whether it is a constexpr.
    text = "constexpr" if "constexpr" in ast.unparse(annotation) else None
    return None if text is None else ast.copy_location(ast.Constant(text), annotation)


def _is_constant(node: ast.expr, names: Mapping[str, str], constants: set[str]) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) if name in constants:
            return True
        case ast.Name() | ast.Attribute():
            return bool(dotted(node, names))
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand, names, constants)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left, names, constants) and _is_constant(right, names, constants)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return all(_is_constant(i, names, constants) for i in items)
        case ast.Call(func=ast.Name(id="float" | "int"), args=items, keywords=[]):
            return all(_is_constant(i, names, constants) for i in items)
        case ast.Call(func=func, args=items, keywords=[]):
            is_constexpr = dotted(func, names) in ("triton.language.constexpr", "triton.language.core.constexpr")
            return is_constexpr and all(_is_constant(i, names, constants) for i in items)
    return False
