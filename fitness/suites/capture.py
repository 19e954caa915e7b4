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
from fitness.frontend.recording.fakecuda import fake_device
from fitness.frontend.target import from_spec
from fitness.sandbox.jobs import CANDIDATE, JobError, line_of_error
from fitness.suites import sizes
from fitness.suites.call_writer import CallWriter
from fitness.suites.on_host import OnHost, seeds_on_host

MODULE = "candidate"


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
    with fake_device(target, listener), seeds_on_host(), listener.listening(), listener:
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


class _Listener(OnHost):
    """The function mode under which the tests run: knows which function calls which, and the origin of values."""

    def __init__(self, scratch: Path, most: int, launching: bool) -> None:
        super().__init__()
        self._scratch, self._most, self._launching = scratch, most, launching
        self._seen: set[str] = set()
        self._depth = 0
        self.launches = 0
        self.calls: list[dict[str, Any]] = []
        self.trouble = ""  # of a call that cannot be written as text
        self.timed = False  # whether calls are those of the script that times the file

    def computing(self) -> bool:
        return bool(self._depth or self._backward) and self._launching

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
            self.in_backward(),
        ):
            yield

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
