"""Turns a problem of KernelBench into the inputs and the reference of a task.

A file has `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`.  The integers at its top level are its
sizes, and others can be put in their place.

Files are the user's own and trusted, like a task.py: they run in this process.  Of their top level only imports,
definitions and assignments are executed.
"""

from __future__ import annotations

import ast
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from evo.core import syntax
from evo.core.errors import TaskError
from fitness.tasks.scaffold import MODEL_MARK

JITTER = 0.25  # of parameters that a model initialises to a constant: a kernel could leave those out
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_DRAWING = threading.Lock()  # PyTorch's global generators are seeded while a problem draws


# --- sizes -----------------------------------------------------------------------------------------------------------


def top_level(text: str) -> ast.Module:
    """Returns the part of a file that is executed.  Raises TaskError if it is not Python or not a problem."""
    try:
        tree = syntax.parse(text)
    except SyntaxError as error:
        raise TaskError(f"not Python: line {error.lineno}: {error.msg}") from error
    tree.body = [node for node in tree.body if isinstance(node, _KEPT)]
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in defined]
    if missing:
        raise TaskError(f"expected Model, get_inputs and get_init_inputs at the top level, found no {missing[0]}")
    return tree


def axes_of(text: str) -> dict[str, int]:
    """Returns the integers that the top level assigns, by name; a tuple `shape` gives `shape_0`, `shape_1`."""
    return {name: value for _, slots in _assigned(top_level(text)) for name, (_, value) in slots.items()}


def with_axes(text: str, axes: Mapping[str, int]) -> ast.Module:
    """Returns the top level with other integers."""
    tree = top_level(text)
    for node, slots in _assigned(tree):
        for name, (place, _) in slots.items():
            if name in axes:
                new = ast.copy_location(ast.Constant(axes[name]), node.value)
                if place is None:
                    node.value = new
                else:
                    assert isinstance(node.value, ast.Tuple)
                    node.value.elts[place] = new
    return tree


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.Assign, dict[str, tuple[int | None, int]]]]:
    """Yields assignments of integers: the position of each in a tuple (None: not in a tuple), and the integer."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value  # `height = width = 64` goes by its first name
        slots: dict[str, tuple[int | None, int]] = {}
        if isinstance(target, ast.Name) and (number := _integer(value)) is not None:
            slots[target.id] = (None, number)
        elif isinstance(value, ast.Tuple):
            names = [f"{target.id}_{i}" for i in range(len(value.elts))] if isinstance(target, ast.Name) else []
            if isinstance(target, ast.Tuple):
                names = [t.id for t in target.elts if isinstance(t, ast.Name)]
            if len(names) == len(value.elts):
                numbers = [(name, i, _integer(e)) for i, (name, e) in enumerate(zip(names, value.elts, strict=True))]
                slots |= {name: (i, number) for name, i, number in numbers if number is not None}
        if slots:
            yield node, slots


def _integer(node: ast.expr) -> int | None:
    """Returns the value of an expression of integer literals, None for any other."""
    if any(isinstance(n, (ast.Name, ast.Call, ast.Attribute)) for n in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "size", "eval"), {"__builtins__": {}})
    except Exception:  # arithmetic may raise anything
        return None
    return value if type(value) is int and value >= 0 else None


# --- drawing ---------------------------------------------------------------------------------------------------------


class _Placed(TorchFunctionMode):
    """Puts new tensors on one device, whatever the file names; if `signed`, uniform numbers become normal ones.

    `drawn` are the tensors that random functions gave.
    """

    def __init__(self, device: torch.device, signed: bool) -> None:
        super().__init__()
        self._device, self._signed = device, signed
        self.drawn: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        if kwargs.get("device") is not None:
            kwargs["device"] = self._device
        if func is torch.Tensor.to:
            args = tuple(self._device if _names_device(a) else a for a in args)
        if self._signed and func in _SIGNED and args not in ((), ((),)):
            func = _SIGNED[func]
        result = func(*args, **kwargs)
        if func in _RANDOM:
            self.drawn.append(result)
        return result


_SIGNED: dict[Any, Any] = {torch.rand: torch.randn, torch.rand_like: torch.randn_like}
_RANDOM = (torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.randint)


def _names_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"))


@contextmanager
def _seeded(seed: int, device: torch.device, signed: bool = False) -> Iterator[_Placed]:
    """Seeds all random numbers and puts new tensors on `device`; restores the global generators."""
    devices = [device] if device.type == "cuda" else []
    mode = _Placed(device, signed)
    with ExitStack() as stack:
        stack.enter_context(_DRAWING)
        if device.type != "meta":
            stack.enter_context(torch.random.fork_rng(devices))
            torch.manual_seed(seed)
        stack.enter_context(torch.device(device))
        stack.enter_context(mode)
        yield mode


# --- the problem -----------------------------------------------------------------------------------------------------


class Problem:
    """Makes inputs and reference for a generated task.py."""

    def __init__(self, text: str, *, state: Sequence[str] = (), signed: bool = True) -> None:
        """Reads the problem. text: of the file; signed: normal numbers in place of uniform ones.

        state: parameters and buffers that kernels get after the inputs, by path.
        """
        self._text, self.state, self.signed = text, tuple(state), signed
        self._code: dict[tuple[tuple[str, int], ...], dict[str, Any]] = {}
        self._axes: dict[tuple[Any, ...], Mapping[str, int]] = {}  # by shapes of the arguments
        self._models: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_task(cls, file: str, *, state: Sequence[str], signed: bool) -> Problem:
        """Reads the part of a generated task.py that is above the mark."""
        return cls(Path(file).read_text(encoding="utf-8").partition(MODEL_MARK)[0], state=state, signed=signed)

    def inputs(self, axes: Mapping[str, int], generator: torch.Generator) -> tuple[Any, ...]:
        """Returns inputs, then state, freshly initialised; keyed by the seed of `generator`, on its device."""
        given, model, _ = self.drawn(axes, generator.initial_seed(), generator.device)
        arguments = (*given, *(_fresh(*item, generator) for item in self._state_of(model)))
        self._axes[_key(arguments)] = dict(axes)
        return arguments

    def reference(self, *arguments: Any) -> Any:
        """Returns the result of Model.forward for them, in their own precision."""
        with self._lock:  # several threads may verify candidates of the task, with one model
            model, given = self.call(*arguments)
            return model(*given)

    def call(self, *arguments: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Returns the model with its state in place, and its inputs."""
        axes = self._axes.get(_key(arguments))
        if axes is None:
            raise TaskError(f"expected arguments as inputs() draws them, got shapes {_key(arguments)}")
        first = next(a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point())
        # Tensors that only have a shape get a model of their own, whose tensors are such ones, made in the same mode.
        key = (tuple(axes.items()), first.device, first.dtype, getattr(first, "fake_mode", None))
        if key not in self._models:
            made = self._model(axes, first.device)
            floats = {value.dtype for _, value in state(made) if value.is_floating_point()}
            self._models[key] = made if floats <= {first.dtype} else made.to(first.dtype)
        model, count = self._models[key], len(arguments) - len(self.state)
        for path, value in zip(self.state, arguments[count:], strict=True):
            put(model, path, value)
        return model, arguments[:count]

    def drawn(
        self, axes: Mapping[str, int], seed: int, device: torch.device
    ) -> tuple[list[Any], torch.nn.Module, list[torch.Tensor]]:
        """Returns (inputs, model, those of the inputs that are unchanged random numbers)."""
        given, plain = self.given(axes, seed, device)
        return given, self._model(axes, device, seed + 1), plain

    def given(self, axes: Mapping[str, int], seed: int, device: torch.device) -> tuple[list[Any], list[torch.Tensor]]:
        """Returns the inputs alone, and those of them that are unchanged random numbers."""
        with torch.no_grad(), _seeded(seed, device, self.signed) as mode:
            given = list(self._names(axes)["get_inputs"]())
        return given, [x for x in given if any(x is one for one in mode.drawn)]

    def _model(self, axes: Mapping[str, int], device: torch.device, seed: int = 0) -> torch.nn.Module:
        names = self._names(axes)
        with _seeded(seed, device):
            model: torch.nn.Module = names["Model"](*names["get_init_inputs"]())
        return model.requires_grad_(False)

    def _state_of(self, model: torch.nn.Module) -> list[tuple[torch.Tensor, bool]]:
        """Returns each tensor of the state, and whether it is a parameter."""
        found = dict(state(model))
        parameters = {path for path, _ in model.named_parameters(remove_duplicate=False)}
        return [(found[path], path in parameters) for path in self.state]

    def _names(self, axes: Mapping[str, int]) -> dict[str, Any]:
        """Returns the names that the file defines at these sizes."""
        key = tuple(axes.items())
        if key not in self._code:
            names: dict[str, Any] = {"__name__": "kernelbench_problem"}
            exec(compile(ast.fix_missing_locations(with_axes(self._text, axes)), "problem.py", "exec"), names)
            self._code[key] = names
        return self._code[key]


def state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields parameters, buffers and other tensors that the modules hold, by path."""
    for prefix, module in model.named_modules():
        for name, value in itertools.chain(module._parameters.items(), module._buffers.items(), vars(module).items()):
            if isinstance(value, torch.Tensor):
                yield f"{prefix}.{name}".lstrip("."), value


def put(model: torch.nn.Module, path: str, value: torch.Tensor) -> None:
    """Puts `value` in the place that `state` calls `path`."""
    prefix, _, name = path.rpartition(".")
    module = model.get_submodule(prefix)
    if name in module._parameters:
        module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)
    elif name in module._buffers:
        module._buffers[name] = value
    else:
        module.__dict__[name] = value


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Returns the tensors in a model's result."""
    found = [result] if isinstance(result, torch.Tensor) else result
    return [value for value in found if isinstance(value, torch.Tensor)]


def said(error: Exception) -> str:
    """Returns an error of a file's own code in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _fresh(value: torch.Tensor, parameter: bool, generator: torch.Generator) -> torch.Tensor:
    """Spreads a parameter that was initialised to one value everywhere around it; the host reads nothing."""
    value = value.detach()
    if not (parameter and value.is_floating_point() and value.numel()):
        return value
    noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=value.dtype)
    return torch.where(value.max() == value.min(), value + JITTER * noise, value)


def _key(arguments: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments)
