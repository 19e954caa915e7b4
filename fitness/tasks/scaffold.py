"""Writes the first task.py for a kernel file: what the source shows, and "EDIT:" for what the user has to decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from evo.core import syntax
from evo.core.errors import TaskError

# In a task.py that was made of a PyTorch model: the text of the model is above it.
MODEL_MARK = "# --- what evo makes of it ---"

_SKELETON = '''"""EDIT: one line on what {entry} computes."""

import torch
from fitness import Case

entry = "{entry}"  # the host function in kernel.py that is called{others}

# EDIT: the sizes to be fast at.  `axes` are those on the target GPU, `cpu_axes` small ones for machines without it
# (a few dozen programs).  Tune cases guide the search; give at least one holdout case with odd sizes.
cases = [
    Case("large", {large}, cpu_axes={small}),
    Case("odd", {odd}, role="holdout", cpu_axes={odd_small}),
]


def inputs(case, generator):
    """Fresh random arguments of {entry}({parameters}), on generator.device.{defaults}"""
{axes}
    dtype, device = getattr(torch, case.dtype), generator.device
{draws}
    return ({names})


def reference({parameters}):
    """EDIT: the ground truth in plain PyTorch, e.g. `return torch.softmax(x, dim=-1)`.

    It is also run in float64, so take dtypes from the arguments and do not name them.
    """
    raise NotImplementedError("EDIT: write the reference in task.py")

{decided}
# EDIT: keep what applies, see the module docstring of fitness/tasks/task.py.
# writes = ("out",)         # parameters of reference that are written in place
# tolerance = 1e-3          # relative error allowed beyond the automatic budget
# stress = False            # do not scale, negate or perturb the inputs
# deterministic = False     # results may differ between runs (atomics)
# allow_delegation = True   # kernel.py may call PyTorch operators for part of the work
# min_own_share = 0.5       # ... but its own kernels must do this share of it
#
# def flops(case):          # arithmetic operations
#     return {product}
#
# def bytes(case):          # bytes that must be read and written at least
#     return 2 * 4 * {product}
'''
# For each set of axes in _SKELETON: the sizes of the last axis, the one before it, and all others.
_SIZES = {"large": (4096, 4096, 8), "small": (128, 8, 2), "odd": (777, 1003, 3), "odd_small": (77, 5, 3)}
_OF_TENSORS = {"shape", "size", "stride", "numel", "dtype", "device", "contiguous", "is_contiguous", "view", "reshape"}
_VALUES = {"int": "1", "float": "1.0", "bool": "False", "str": '""'}


def parse_kernel(source: str, path: str) -> ast.Module:
    """The syntax tree of a kernel file; nothing is executed.  Raises TaskError naming `path` if it is not Python."""
    try:
        return syntax.parse(source)
    except SyntaxError as error:
        raise TaskError(f"{path}, line {error.lineno}: not Python: {error.msg}") from error
    except ValueError as error:  # Null bytes, before Python 3.12.
        raise TaskError(f"{path}: not Python: {error}") from error


def task_skeleton(kernel_source: str) -> str:
    """A task.py for `kernel_source`: it can be executed, and "EDIT:" marks what the user has to decide.

    The entry is the first of `entries`.  Raises TaskError if the source is not Python or has no such function.
    """
    entry, *rest = entries(kernel_source)
    arguments = _arguments(entry)
    given = len(arguments) - len(entry.args.defaults)
    required = arguments[:given] or arguments
    names = [argument.arg for argument in required]
    shapes = _shapes(entry)
    axes = list(dict.fromkeys(axis for name in names for axis in _named(shapes.get(name, {})))) or ["M", "N"]
    left = zip(arguments[given:], entry.args.defaults, strict=True) if given else ()
    defaults = ", ".join(f"{a.arg}={ast.unparse(value)}" for a, value in left)
    return _SKELETON.format(
        entry=entry.name,
        others=f" (others that launch: {', '.join(f.name for f in rest)})" if rest else "",
        parameters=", ".join(names),
        defaults=f"  Left out: {defaults}." if defaults else "",
        names=", ".join(names) + ("," if len(names) == 1 else ""),
        axes="\n".join(f'    {axis} = case.axes["{axis}"]' for axis in axes),
        draws="\n".join(f"    {a.arg} = {_draw_of(a, entry, shapes.get(a.arg, {}), axes)}" for a in required),
        decided=_decided(kernel_source, entry.name),
        product=" * ".join(f'case.axes["{axis}"]' for axis in axes),
        **{case: _sized(axes, sizes) for case, sizes in _SIZES.items()},
    )


def waivers(kernel_source: str, entry: str) -> list[str]:
    """Which of `allow_delegation` and `lenient` a task has to set so that this source passes the gate as its seed."""
    from fitness.frontend.gate import gate  # Here, because the process with the GPU loads tasks, but never the rules.

    strict = gate(kernel_source, entry=entry, allow_delegation=False)
    delegating = gate(kernel_source, entry=entry, allow_delegation=True)
    return ["allow_delegation"] * (len(delegating) < len(strict)) + ["lenient"] * bool(delegating)


def entries(kernel_source: str) -> list[ast.FunctionDef]:
    """Host functions with arguments that launch a kernel and that no other such function calls.

    First those that launch it themselves, then the others, each in the order of the source.  Tests and benchmarks, and
    calls from them, do not count if there is anything else.  Raises TaskError if there are no such functions, or if the
    source is not Python.
    """
    tree = parse_kernel(kernel_source, "kernel")
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and not is_kernel(n)}
    calls = {name: _called(function) & set(functions) - {name} for name, function in functions.items()}
    launching = {name for name, function in functions.items() if _launches(function)}
    while more := {name for name, called in calls.items() if called & launching} - launching:
        launching |= more
    launching = {name for name in launching if _arguments(functions[name])}
    meant = {name for name in launching if not _tries_others(functions[name])} or launching
    inner = set().union(*(calls[name] for name in meant))
    found = [function for name, function in functions.items() if name in (meant - inner or meant)]
    if not found:
        raise TaskError(
            "expected a host function with arguments that launches a Triton kernel as `kernel[grid](...)`, found "
            f"{', '.join(functions) or 'no host function'}; add one"
        )
    return sorted(found, key=_launches, reverse=True)


def launchers(tree: ast.Module, kernel: str) -> list[str]:
    """Names of the functions that launch the kernel of that name directly."""
    return [
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n.value, ast.Name) and n.value.id == kernel for n in _launched(function))
    ]


def is_kernel(function: ast.FunctionDef) -> bool:
    """Whether one of the function's decorators is `triton.jit`."""
    return any(name.rpartition(".")[2] == "jit" for name in _decorators(function))


def _tries_others(function: ast.FunctionDef) -> bool:
    """Whether the function is a test, a benchmark or a script's main function, by its name or its decorators."""
    decorated = any(
        name.rpartition(".")[2] == "perf_report" or name.startswith("pytest.") for name in _decorators(function)
    )
    return decorated or function.name in ("main", "test") or function.name.startswith(("test_", "bench"))


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _called(function: ast.FunctionDef) -> set[str]:
    return {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _decorators(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list]


def _launches(function: ast.FunctionDef) -> bool:
    return any(True for _ in _launched(function))


def _launched(function: ast.FunctionDef) -> Iterator[ast.Subscript]:
    """The `kernel[grid]` of each launch."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield node.func


def _decided(kernel_source: str, entry: str) -> str:
    """The lines of task.py with the options that the source decides."""
    lines = [
        "",
        *(f"{name} = True  # kernel.py would be rejected without it" for name in waivers(kernel_source, entry)),
    ]
    if "tl.atomic_" in kernel_source:
        lines.append("deterministic = False  # kernel.py uses atomics; EDIT: remove it if they add integers only")
    return "\n".join([*lines, ""]) if len(lines) > 1 else ""


def _sized(axes: list[str], sizes: tuple[int, int, int]) -> str:
    last, middle, first = sizes
    of = [last, middle, *[first] * len(axes)][: len(axes)][::-1]
    return "{" + ", ".join(f'"{axis}": {size}' for axis, size in zip(axes, of, strict=True)) + "}"


def _shapes(function: ast.FunctionDef) -> dict[str, dict[int, str]]:
    """Names of the axes of arguments whose shape the function reads (`M, N = x.shape`, `N = x.size(1)`).

    By argument and position.  Position -1 means that the number of axes is unknown.  If a name stands for axes of
    several arguments, they are one axis.
    """
    arguments = {argument.arg for argument in _arguments(function)}
    found: dict[str, dict[int, str]] = {}
    for name, position, axis in _axes_read(function):
        if name in arguments and axis not in arguments:
            found.setdefault(name, {}).setdefault(position, axis)
    for name, axes in found.items():
        for position in range(max(axes)):
            axes.setdefault(position, f"{name}_{position}")
    return found


def _axes_read(function: ast.FunctionDef) -> Iterator[tuple[str, int, str]]:
    """(argument, position, name) of each axis that gets a name; position -1 if the number of axes is unknown."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and (whole := _shape_of(value)) is not None:
            for position, element in enumerate(target.elts):
                named = isinstance(element, ast.Name) and element.id.strip("_")
                yield whole, position, ast.unparse(element) if named else f"{whole}_{position}"
            continue
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for one, of in pairs:
            if isinstance(one, ast.Name) and (found := _axis_of(of)) is not None:
                yield found[0], -1, ""
                yield *found, one.id


def _shape_of(node: ast.expr) -> str | None:
    """`x` for `x.shape` and `x.size()`."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr="shape"):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]):
            return name
    return None


def _axis_of(node: ast.expr) -> tuple[str, int] | None:
    """`x` and 1 for `x.shape[1]` and `x.size(1)`; None for other expressions and for positions from the end."""
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=int(position))) if _shape_of(value) is not None:
            return str(_shape_of(value)), position
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[ast.Constant(value=int(position))]
        ):
            return name, position
    return None


def _draw_of(argument: ast.arg, function: ast.FunctionDef, shape: Mapping[int, str], axes: Sequence[str]) -> str:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    kind = next((k for k in _VALUES if annotation.removesuffix("| None").strip() in (k, f"Optional[{k}]")), "")
    if not kind and not annotation and not shape and _is_number(argument.arg, function):
        kind = "int"
    if kind:
        return f"{_VALUES[kind]}  # EDIT: value"
    sizes = ", ".join(_named(shape) or axes)
    ask = "shape, values" if -1 in shape or not shape else "values"
    return f"torch.randn({sizes}, generator=generator, device=device, dtype=dtype)  # EDIT: {ask}"


def _named(shape: Mapping[int, str]) -> list[str]:
    """The names of a shape's axes, in order."""
    return [shape[position] for position in sorted(shape) if position >= 0]


def _is_number(name: str, function: ast.FunctionDef) -> bool:
    """Whether the function computes with an argument and never uses it as a tensor."""
    used_as_tensor = used_as_number = False
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=found), attr=attribute) if found == name:
                used_as_tensor |= attribute in _OF_TENSORS
            case ast.Call(func=ast.Attribute(attr="empty_like" | "zeros_like"), args=[ast.Name(id=found), *_]):
                used_as_tensor |= found == name
            case ast.BinOp() | ast.Compare() | ast.Tuple() | ast.Call(func=ast.Attribute(attr="cdiv") | ast.Name()):
                used_as_number |= any(isinstance(n, ast.Name) and n.id == name for n in ast.iter_child_nodes(node))
    return used_as_number and not used_as_tensor
