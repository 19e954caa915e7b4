"""The first task.py for a kernel file: what can be read off the source, and "EDIT:" where the user has to decide."""

from __future__ import annotations

import ast

from evo.errors import TaskError

_SKELETON = '''"""EDIT: one line on what {entry} computes."""

import torch
from fitness import Case

entry = "{entry}"  # the host function in kernel.py that is called{others}

# EDIT: the sizes to be fast at.  `axes` are those on the target GPU, `cpu_axes` small ones for machines without it
# (a few dozen programs).  Tune cases guide the search; give at least one holdout case with odd sizes.
cases = [
    Case("square", {{"M": 4096, "N": 4096}}, cpu_axes={{"M": 8, "N": 128}}),
    Case("odd", {{"M": 1003, "N": 777}}, role="holdout", cpu_axes={{"M": 5, "N": 77}}),
]


def inputs(case, generator):
    """Fresh random arguments of {entry}({parameters}), on generator.device."""
    M, N = case.axes["M"], case.axes["N"]
    dtype = getattr(torch, case.dtype)
{draws}
    return ({names})


def reference({parameters}):
    """EDIT: the ground truth in plain PyTorch, e.g. `return torch.softmax(x, dim=-1)`.

    It is also run in float64, so take dtypes from the arguments and do not name them.
    """
    raise NotImplementedError("EDIT: write the reference in task.py")


# EDIT: keep what applies, see the module docstring of fitness/task.py.
# writes = ("out",)         # parameters of reference that are written in place
# tolerance = 1e-3          # relative error allowed beyond the automatic budget
# stress = False            # do not scale, negate or perturb the inputs
# deterministic = False     # results may differ between runs (atomics)
# allow_delegation = True   # kernel.py may call PyTorch operators for part of the work
# min_own_share = 0.5       # ... but its own kernels must do this share of it
#
# def flops(case):          # arithmetic operations
#     return case.axes["M"] * case.axes["N"]
#
# def bytes(case):          # bytes that must be read and written at least
#     return 2 * 4 * case.axes["M"] * case.axes["N"]
'''


def parse_kernel(source: str, path: str) -> ast.Module:
    """The syntax tree of a kernel file; nothing is executed.  Raises TaskError naming `path` if it is not Python."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise TaskError(f"{path}, line {error.lineno}: not Python: {error.msg}") from error
    except ValueError as error:  # null bytes, before Python 3.12
        raise TaskError(f"{path}: not Python: {error}") from error


def task_skeleton(kernel_source: str) -> str:
    """A task.py for `kernel_source`: executable as it stands, with "EDIT:" where the user has to say what is meant.

    The entry is the first top-level function that launches a kernel (`kernel[grid](...)`), itself or through others,
    and that no other function calls.  Raises TaskError where the source is not Python or has no such function.
    """
    entry, *rest = _entries(parse_kernel(kernel_source, "kernel"))
    arguments = _arguments(entry)
    required = arguments[: len(arguments) - len(entry.args.defaults)] or arguments
    names = [argument.arg for argument in required]
    return _SKELETON.format(
        entry=entry.name,
        others=f" (others that launch: {', '.join(f.name for f in rest)})" if rest else "",
        parameters=", ".join(names),
        names=", ".join(names) + ("," if len(names) == 1 else ""),
        draws="\n".join(f"    {argument.arg} = {_draw_of(argument)}" for argument in required),
    )


def _entries(tree: ast.Module) -> list[ast.FunctionDef]:
    """Host functions with arguments that launch a kernel and that no other one calls, in the order of the source."""
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and not _is_kernel(n)}
    calls = {name: _called(function) & set(functions) - {name} for name, function in functions.items()}
    launching = {name for name, function in functions.items() if _launches(function)}
    while more := {name for name, called in calls.items() if called & launching} - launching:
        launching |= more
    inner = set().union(*calls.values())
    entries = [f for name, f in functions.items() if name in launching - inner and _arguments(f)]
    if not entries:
        raise TaskError(
            "expected a host function with arguments that launches a Triton kernel as `kernel[grid](...)`, found "
            f"{', '.join(functions) or 'no host function'}; add one"
        )
    return entries


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _called(function: ast.FunctionDef) -> set[str]:
    return {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _is_kernel(function: ast.FunctionDef) -> bool:
    decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(ast.unparse(decorator).rpartition(".")[2] == "jit" for decorator in decorators)


def _launches(function: ast.FunctionDef) -> bool:
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript) for n in ast.walk(function))


def _draw_of(argument: ast.arg) -> str:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    if annotation in ("int", "float", "bool", "str"):
        return {"int": "1", "float": "1.0", "bool": "False", "str": '""'}[annotation] + "  # EDIT: value"
    return "torch.randn(M, N, generator=generator, device=generator.device, dtype=dtype)  # EDIT: shape, dtype, values"
