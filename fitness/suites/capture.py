"""Captures calls: runs the test part of a file and notes how it calls the functions of its kernel part.

If the suite has a script that times the file, it runs first, at two of its sizes (`fitness/suites/sizes.py`).

Runs in a sandboxed child without a GPU.  Tensors are real ones in host memory that say they lie on the GPU.  Kernel
launches are counted and not made, so the results of kernels are zero.

A call counts if it is the outermost one to a function (or to `apply` of an autograd function) of the kernel part.  It
must take tensors, be writable as text, and launch a kernel.  A launch outside of such a call counts itself.

A suite without kernels has PyTorch functions in their place.  There a call counts if it returns.  It is written with
all of the function's parameters, so that calls differ in arguments alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

from evo.core.records import Verdict
from fitness.frontend.recording.fakecuda import AsCuda, fake_device
from fitness.frontend.target import from_spec
from fitness.sandbox.jobs import CANDIDATE, JobError, line_of_call, line_of_error
from fitness.suites import sizes
from fitness.suites.call_writer import CallWriter
from fitness.suites.values import COMPUTED

MODULE = "candidate"
_ENGINE = torch.autograd._engine_run_backward  # every backward pass calls it
_SAME_VALUES = {
    torch.Tensor.to, torch.Tensor.int, torch.Tensor.long, torch.Tensor.short, torch.Tensor.char, torch.Tensor.clone,
    torch.Tensor.contiguous, torch.Tensor.cuda, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16,
}  # fmt: skip
_ALLOCATE = {
    torch.empty, torch.empty_like, torch.empty_strided, torch.zeros, torch.zeros_like, torch.full, torch.full_like,
    torch.ones, torch.ones_like, torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_full,
    torch.Tensor.new_ones, torch.Tensor.new_empty_strided,
}  # fmt: skip
_UNWRITTEN = {
    torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
}  # fmt: skip


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Captures the calls of a file.

    payload: "name", "kernels" and "tests" (a file and its two parts), "launching" (whether calls launch kernels),
    "timed" (the script that times it, or ""), "most_bytes" (of inputs, at its sizes), "target", "most" (calls that are
    kept).

    Returns {"calls": [call], "error": why the tests ended early, or "", "untimed": why the script did, or ""}.  A call
    is {"form", "arguments", "timed"}.  A form says how the call is written (`CallWriter`).  An argument is {"tensor":
    form of `fitness.suites.values`} or {"value": plain value}.  "timed" says whether the call is the script's.
    Files of kept values are left in `scratch`.  Raises JobError if the kernel part cannot be executed.
    """
    target = from_spec(payload["target"])
    listener = _Listener(scratch, int(payload["most"]), payload["launching"])
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with fake_device(target, listener), _seeds_on_host(), listener.listening(), listener:
        space = _execute(payload["kernels"], scratch)
        sys.modules.setdefault(payload["name"], sys.modules[MODULE])  # some tests import their own file
        listener.wrap_all(space)
        untimed = "no script that times it"
        if payload["timed"]:
            listener.timed = True
            untimed = sizes.run(payload["timed"], dict(space), scratch, int(payload["most_bytes"]))
            listener.timed = False
        error = _run_tests(payload["tests"], space, listener, scratch)
    return {"calls": listener.calls, "error": error or listener.trouble, "untimed": untimed}


def _execute(source: str, scratch: Path) -> dict[str, Any]:
    """Executes the kernel part as `__main__` and returns its names."""
    file = scratch / CANDIDATE
    file.write_text(source, encoding="utf-8")
    module = ModuleType(MODULE)
    module.__file__ = str(file)
    vars(module)["__name__"] = "__main__"
    sys.modules[MODULE] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), vars(module))
    except JobError:
        raise
    except Exception as error:  # the suite's code may raise anything
        message = f"importing it failed: {type(error).__name__}: {error}"
        raise JobError(Verdict.COMPILE_ERROR, message, line_of_error(error)) from error
    return vars(module)


def _run_tests(source: str, space: dict[str, Any], listener: _Listener, scratch: Path) -> str:
    """Runs the tests; returns what went wrong, "" if nothing did.  Calls made before are kept."""
    file = str(scratch / "tests.py")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    before, calls = set(space), len(listener.calls)
    try:
        exec(compile(source, file, "exec", dont_inherit=True), space)
        if len(listener.calls) == calls:  # tests that define functions but do not call them
            for name in [n for n in space if n not in before and n.startswith("test") and callable(space[n])]:
                space[name]()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return ""


@contextlib.contextmanager
def _seeds_on_host() -> Iterator[None]:
    """Ignores seeds for the GPU's generators: the host's generators replace them."""
    real = torch.Generator
    nothing: dict[str, Any] = dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all"), lambda *_: None)
    with (
        mock.patch.multiple(torch.cuda, **nothing),
        mock.patch.object(torch, "Generator", lambda device=None: real()),
    ):
        yield


class _Listener(AsCuda):
    """The function mode under which the tests run: knows which function calls which, and the origin of values."""

    def __init__(self, scratch: Path, most: int, launching: bool) -> None:
        super().__init__(self)  # type: ignore[arg-type]
        for needing_values in (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__):
            del self._answers[needing_values]
        self._scratch, self._most, self._launching = scratch, most, launching
        self._drawn: dict[int, tuple[Any, dict[str, Any]]] = {}  # by address of the storage, which is kept alive
        self._seen: set[str] = set()
        self._depth = 0
        self._backward = False  # whether autograd is in a backward pass
        self.launches = 0
        self.calls: list[dict[str, Any]] = []
        self.trouble = ""  # of a call that cannot be written as text
        self.timed = False  # whether calls are those of the script that times the file
        self.factory_on_host: bool | None = None

    # --- in place of the recorder ------------------------------------------------------------------------------------

    def on_host(self, tensor: torch.Tensor) -> bool:
        return False

    def address(self, tensor: torch.Tensor) -> int:
        with torch._C.DisableTorchFunction():
            return tensor.data_ptr()

    def fail(self, verdict: Verdict, message: str) -> JobError:
        return JobError(verdict, message, line_of_call())

    def _move(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        return tensor

    # --- where values come from --------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, torch.Tensor):
            with torch._C.DisableTorchFunction():
                self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: torch.Tensor) -> None:
        if func in (torch.randint, torch.randint_like):
            numbers = [a for a in args if type(a) is int]
            low = kwargs.get("low", numbers[0] if len(numbers) > 1 else 0)
            high = kwargs.get("high", numbers[1] if len(numbers) > 1 else next(iter(numbers), None))
            if high is not None:
                self._remember(result, {"rule": "randint", "low": int(low), "high": int(high)})
        elif func is torch.randperm:
            self._remember(result, {"rule": "randperm"})
        elif func in _ALLOCATE:
            if func in _UNWRITTEN and result.dtype.itemsize:
                result.zero_()
            if (self._depth or self._backward) and self._launching:  # the result of a kernel
                self._remember(result, COMPUTED)
        elif func in _SAME_VALUES and args and isinstance(args[0], torch.Tensor):
            other = self._drawn.get(args[0].untyped_storage()._cdata)
            if other is not None and result.numel() == args[0].numel():
                self._remember(result, other[1])

    def _remember(self, tensor: torch.Tensor, rule: dict[str, Any]) -> None:
        storage = tensor.untyped_storage()
        self._drawn[storage._cdata] = storage, rule

    def rule(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        _, rule = self._drawn.get(tensor.untyped_storage()._cdata, (None, None))
        if rule is not None and (rule["rule"] == "quantiles") != tensor.dtype.is_floating_point:
            return None
        return rule

    # --- calls -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Counts launches; one made by the tests themselves is a call."""

        def counted(kernel: KernelInterface, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            self.launches += 1
            if not self._depth and not warmup:
                self._write_launch(_kernel_name(kernel), kernel, grid, args, kwargs)
            return types.SimpleNamespace(n_regs=0, n_spills=0, metadata=types.SimpleNamespace(shared=0))

        with (
            mock.patch.object(JITFunction, "run", counted),
            mock.patch.object(Autotuner, "run", counted),
            mock.patch.object(torch.autograd, "_engine_run_backward", self._noticed(_ENGINE)),
        ):
            yield

    def _noticed(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        """Returns autograd's engine with this mode on: PyTorch turns it off before `Tensor.backward` is executed."""

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._backward = self._backward, True
            try:
                with self:
                    return engine(*args, **kwargs)
            finally:
                self._backward = before

        return run

    def wrap_all(self, space: dict[str, Any]) -> None:
        """Wraps what the kernel part defines, so that calls to it are noticed."""
        for name, value in list(space.items()):
            if isinstance(value, types.FunctionType) and inspect.unwrap(value).__globals__ is space:
                space[name] = self._wrapped(name, value, _parameter_names(value))
            elif _is_autograd(value):
                names = _parameter_names(value.forward)
                value.apply = self._wrapped(f"{name}.apply", value.apply, names[1:])
                value.forward = staticmethod(self._wrapped(f"{name}.forward", value.forward, names))
            elif _is_autograd(getattr(value, "__self__", None)) and value.__name__ == "apply":
                space[name] = self._wrapped(name, value, _parameter_names(value.__self__.forward)[1:])

    def _wrapped(self, name: str, function: Callable[..., Any], parameters: Sequence[str]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return function(*args, **kwargs)
            if not self._launching:
                args, kwargs = _all_arguments(function, args, kwargs)
            writer = self._writer()
            with torch._C.DisableTorchFunction():
                writer.write(name, parameters, args, kwargs)
            self.trouble = self.trouble or writer.trouble
            if writer.trouble or not writer.takes_tensors:
                return function(*args, **kwargs)  # functions that it calls may take tensors
            if self.timed and not self._launching:  # PyTorch would compute it, however large it is
                self._add(writer)
                return None
            before, self._depth = self.launches, 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._depth = 0
            if self._launching:
                with torch._C.DisableTorchFunction():
                    writer.returned(result)
            if self.launches > before or not self._launching:
                self._add(writer)
            return result

        return called

    def _write_launch(self, name: str, kernel: Any, grid: Any, args: Any, kwargs: dict[str, Any]) -> None:
        writer = self._writer()
        found, why = _grid(kernel, grid, {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
        if found is None:
            self.trouble = self.trouble or f"the tests launch {name} with a grid that {why}"
            return
        with torch._C.DisableTorchFunction():
            writer.write(f"{name}[{tuple(int(g) for g in found)}]", kernel.arg_names, args, kwargs)
            writer.returned(None)
        self._add(writer)

    def _writer(self) -> CallWriter:
        names = vars(sys.modules[MODULE])
        return CallWriter(names, self.rule, self._scratch, f"call{len(self.calls)}")

    def _add(self, writer: CallWriter) -> None:
        if writer.trouble:
            self.trouble = self.trouble or writer.trouble
            return
        call = {"form": writer.form(), "arguments": writer.arguments, "timed": self.timed}
        key = repr([call["form"], [_what(a) for a in writer.arguments]])
        if key not in self._seen and len(self.calls) < self._most:
            self._seen.add(key)
            self.calls.append(call)


def _what(argument: Mapping[str, Any]) -> Any:
    tensor = argument.get("tensor")
    return argument if tensor is None else [tensor["shape"], tensor["strides"], tensor["dtype"]]


class _Read(dict):  # type: ignore[type-arg]
    """Arguments of a kernel as its grid gets them; `names`: which were read."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def _grid(kernel: Any, grid: Any, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, str]:
    """Returns the grid of a launch, the same for each configuration of the kernel; or None, and why.

    Configurations with blocks of other sizes need other grids: a grid that ignores them is right for one size.
    """
    configs = kernel.configs if isinstance(kernel, Autotuner) else []
    names = {name for config in configs for name in config.kwargs}
    differing = {name for name in names if len({config.kwargs.get(name) for config in configs}) > 1}
    given = [_Read({**bound, **config.all_kwargs()}) for config in configs] or [_Read(bound)]
    grids = {tuple(grid(one)) if callable(grid) else tuple(grid) for one in given}
    if len(grids) > 1:
        return None, "depends on its configuration"
    if differing and not any(one.names & differing for one in given):
        return None, f"does not depend on {' and '.join(sorted(differing))}, in which its configurations differ"
    return grids.pop(), ""


def _is_autograd(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, torch.autograd.Function) and "forward" in vars(value)


def _kernel_name(kernel: Any) -> str:
    """Returns the global that launches `kernel`: itself, or the tuner or heuristics around it."""
    for name, value in vars(sys.modules[MODULE]).items():
        inner = value
        while inner is not kernel and isinstance(inner, KernelInterface) and hasattr(inner, "fn"):
            inner = inner.fn
        if inner is kernel:
            return name
    return ""


def _all_arguments(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the arguments of a call and the defaults of the others.

    Raises TypeError if the function refuses them.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a method of an extension type
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
