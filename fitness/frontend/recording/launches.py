"""Records the kernel launches of a candidate's host code instead of making them.

`recorded` replaces `JITFunction.run` and `Autotuner.run`; `Heuristics.run` works as it is.  An autotuned launch becomes
one Launch with all configurations that `prune_configs_by` keeps.

The autotuner's `reset_to_zero`, `restore_value` and hooks are not recorded: Triton applies them around its measuring
runs only.  From the second call on, or with a single configuration, Triton launches without them.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn
from unittest import mock

import torch
import triton.language as tl
from triton.compiler.compiler import make_backend
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from evo.core.records import Verdict
from fitness.frontend.plan import ITEMSIZE, MOST_TUNED, Argument, Config, Launch, TensorRef, too_many_tuned
from fitness.frontend.recording.recorder import Recorder
from fitness.sandbox.jobs import line_of_call

CONFIGURATIONS = 64  # of one autotuned launch: each is compiled, which takes a few tenths of a second.
GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA C Programming Guide, compute capabilities.

# Triton's names of the types that `triton.reinterpret` is used for, with torch's names.
_REINTERPRETED = {
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "int8": "int8", "uint8": "uint8", "int1": "bool",
    "fp16": "float16", "bf16": "bfloat16", "int16": "int16", "fp32": "float32", "int32": "int32",
    "fp64": "float64", "int64": "int64",
}  # fmt: skip


class Compiled:
    """The result of a launch or a warm-up.  Nothing is compiled while recording, so it has no attributes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> NoReturn:
        message = (
            f"host code reads {name!r} of a compiled kernel, which does not exist while recording; "
            "compute the launch from shapes and device properties"
        )
        raise self._recorder.fail(Verdict.UNSUPPORTED, message)


class _Launches:
    """Collects the launches of one call; `module` is the name of the candidate's module."""

    def __init__(self, recorder: Recorder, module: str) -> None:
        self.recorder, self.module = recorder, module
        self.kernels: dict[str, JITFunction] = {}  # Those launched so far.
        self._tuning: list[tuple[JITFunction, Config]] | None = None  # Configurations of the current autotuner.
        self._label = ""
        self._tuned = 0  # Number of autotune configurations so far.

    def run(self, fn: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Compiled:
        """Records a launch in place of JITFunction.run."""
        for hook in fn.pre_run_hooks:
            hook(*args, **kwargs)
        self._check_origin(fn)
        bound, options = self._bind(fn, args, kwargs)
        if not warmup:
            config = Config(
                grid=self._grid(grid, bound),
                args={name: self.encode(value, name) for name, value in bound.items()},
                options=options,
                label=self._label,
            )
            self.kernels[fn.__name__] = fn
            if self._tuning is not None:
                self._tuning.append((fn, config))
            else:
                self._add(fn, (config,))
        return Compiled(self.recorder)

    def tune(self, tuner: Autotuner, *args: Any, **kwargs: Any) -> Compiled:
        """Records an autotuned launch in place of Autotuner.run."""
        if self._tuning is not None:
            raise self.recorder.fail(Verdict.UNSUPPORTED, "an autotuner within an autotuner; use one list of configs")
        configs = self._configurations(tuner, args, kwargs)
        self._tuned += len(configs) if len(configs) > 1 else 0
        if self._tuned > MOST_TUNED:
            raise self.recorder.fail(Verdict.UNSUPPORTED, too_many_tuned(self._tuned))
        self._tuning, result = [], Compiled(self.recorder)
        try:
            for config in configs:
                self._label = str(config)
                result = tuner.fn.run(*args, **kwargs, **config.all_kwargs())
            found = self._tuning
        finally:
            self._tuning, self._label, tuner.nargs = None, "", None
        tuner.best_config = configs[0]
        if found:
            self._add(found[0][0], tuple(config for _, config in found))
        return result

    def _configurations(self, tuner: Autotuner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The configurations that Triton would measure."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = list(tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs)
        if len(configs) > CONFIGURATIONS:
            message = (
                f"{len(configs)} autotune configurations, at most {CONFIGURATIONS} are tried; "
                "shorten the list or use prune_configs_by"
            )
            raise self.recorder.fail(Verdict.UNSUPPORTED, message)
        for config in configs:
            if config.pre_hook is not None:
                message = (
                    "an autotune configuration with a pre_hook runs host code before each launch; "
                    "move it in front of the launch"
                )
                raise self.recorder.fail(Verdict.UNSUPPORTED, message)
            conflicts = kwargs.keys() & config.kwargs.keys()
            if conflicts:
                raise ValueError(
                    f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}. "
                    "Make sure that you don't re-define auto-tuned symbols."
                )
        return configs

    def _add(self, fn: JITFunction, configs: tuple[Config, ...]) -> None:
        if any(min(c.grid) > 0 for c in configs):  # An empty grid launches nothing.
            self.recorder.add(Launch(fn.__name__, configs, line_of_call()))

    def _check_origin(self, fn: JITFunction) -> None:
        if fn.__module__ != self.module or fn.__qualname__ != fn.__name__:
            message = (
                f"kernel {fn.__module__}.{fn.__qualname__} is not a top-level @triton.jit function of the candidate"
            )
            raise self.recorder.fail(Verdict.UNSUPPORTED, message)

    def _bind(self, fn: JITFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict, dict]:
        """All parameters by name, and the options.  Raises the errors that Triton raises if they do not fit."""
        parameters = {k: v for k, v in kwargs.items() if k in fn.signature.parameters}
        options = {k: _plain(v) for k, v in kwargs.items() if k not in parameters and v is not None}
        try:
            bound = fn.signature.bind(*args, **parameters)
        except TypeError as error:
            raise TypeError(f"{fn.__name__}(): {error}") from None
        bound.apply_defaults()
        backend = make_backend(driver.active.get_current_target())
        recognised = vars(backend.parse_options(dict(options)))
        for name in options:
            if name not in recognised:
                raise KeyError(f"Keyword argument {name} was specified but unrecognised")
        return dict(bound.arguments), options

    def _grid(self, grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
        if callable(grid):
            grid = grid(dict(bound))
        sizes = tuple(operator.index(_plain(g)) for g in grid)
        if not 1 <= len(sizes) <= 3:
            raise ValueError(f"expected a grid of 1 to 3 numbers, got {sizes}")
        x, y, z = sizes + (1,) * (3 - len(sizes))
        if any(not 0 <= g <= limit for g, limit in zip((x, y, z), GRID_LIMITS, strict=True)):
            raise RuntimeError(f"Triton Error [CUDA]: invalid argument: grid {sizes} exceeds {GRID_LIMITS}")
        return x, y, z

    def encode(self, value: Any, name: str) -> Argument:
        """A kernel argument for a plan."""
        value = _plain(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Tensor):
            if self.recorder.on_host(value):
                raise ValueError(f"Pointer argument {name!r} cannot be accessed from Triton (cpu tensor?)")
            return self.recorder.ref(value)
        if isinstance(value, tl.dtype):
            return {"dtype": value.name}
        if isinstance(value, JITFunction):
            self._check_origin(value)
            self.kernels[value.__name__] = value
            return {"jit": value.__name__}
        if isinstance(value, (tuple, list)):
            return tuple(self.encode(v, name) for v in value)
        if isinstance(value, TensorWrapper):
            return self._reinterpreted(self.recorder.ref(value.base), value.dtype, name)
        if isinstance(value, TensorDescriptor):
            message = f"argument {name!r} is a host-side tensor descriptor; use tl.make_tensor_descriptor in the kernel"
            raise self.recorder.fail(Verdict.UNSUPPORTED, message)
        raise TypeError(f"argument {name!r} of type {type(value).__name__}; expected a tensor, number or constexpr")

    def _reinterpreted(self, ref: TensorRef, dtype: Any, name: str) -> TensorRef:
        """The window as `triton.reinterpret` shows it to a kernel."""
        kind = _REINTERPRETED.get(getattr(dtype, "name", ""), "")
        if ITEMSIZE.get(kind) != ITEMSIZE[ref.dtype]:
            message = f"argument {name!r} is {ref.dtype} reinterpreted as {dtype}; expected a dtype of the same size"
            raise self.recorder.fail(Verdict.UNSUPPORTED, message)
        return replace(ref, dtype=kind)


def _plain(value: Any) -> Any:
    """The value without its wrapper, if it is a number in a constexpr or a NumPy scalar."""
    while isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


@contextlib.contextmanager
def recorded(recorder: Recorder, module: str) -> Iterator[Mapping[str, JITFunction]]:
    """Sends all launches to `recorder`; yields the kernels launched so far, by name."""
    launches = _Launches(recorder, module)

    def method(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call(self, *args, **kwargs)

        return run

    with (
        mock.patch.object(JITFunction, "run", method(launches.run)),
        mock.patch.object(Autotuner, "run", method(launches.tune)),
    ):
        yield launches.kernels
