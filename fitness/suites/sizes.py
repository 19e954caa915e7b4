"""Runs TritonBench's script that times a file, to capture its calls at two of its sizes.

A script defines `performance_metrics`: `get_input_tensors` lists inputs from small to large, `call_op(to_cuda(inputs))`
calls the kernel.  Its base class is replaced by one that ends the list before it gets too large.  The kernel
part that is captured replaces the module of the kernels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MOST_BYTES = 64 << 20  # of the inputs of one call: beyond the L2 cache, and quick to verify.
SMALLER = (8, 64)  # times, if outputs overflow at those sizes.
MOST_BYTES_ALONE = 256 << 20  # if the smallest size of a script is larger than that.
_KERNELS = re.compile(r"^from (TritonBench_v1|TorchBench_v1)\.(\w+) import", re.MULTILINE)


def run(script: str, kernels: Mapping[str, Any], scratch: Path, most_bytes: int = MOST_BYTES) -> str:
    """Makes the calls at the largest size within `most_bytes` and at the one in the middle below it.

    kernels: the names of the kernel part.  Returns what went wrong, "" if nothing did; calls made before count.
    """
    try:
        file = str(scratch / "sizes.py")
        space: dict[str, Any] = {"__name__": "sizes", "__file__": file}
        _provide(script, kernels, most_bytes)
        exec(compile(script, file, "exec", dont_inherit=True), space)
        made = space["performance_metrics"]()
        problem = _listed(made)
        inputs = list(made.input_tensors)
        for chosen in sorted({(len(inputs) - 1) // 2, len(inputs) - 1}, reverse=True) if inputs else ():
            made.call_op(made.to_cuda(inputs[chosen]))
    except (Exception, SystemExit) as error:  # the suite's code may raise anything
        return f"{type(error).__name__}: {error}"
    return "" if inputs else problem


def _listed(made: Any) -> str:
    """Has the script list its inputs; returns why that ended early.  The list up to then is enough."""
    try:
        made.get_input_tensors()
    except _Enough:
        return f"its smallest inputs are larger than {MOST_BYTES_ALONE >> 20} MiB"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _provide(script: str, kernels: Mapping[str, Any], most_bytes: int) -> None:
    """Puts the modules that a script imports into sys.modules."""
    utilities = ModuleType("performance_utils")
    metrics = type("Performance_Metrics", (_Metrics,), {"most_bytes": most_bytes})
    vars(utilities).update(Performance_Metrics=metrics, do_bench_config=lambda *_, **__: None)
    sys.modules["performance_utils"] = utilities
    for package, name in _KERNELS.findall(script):
        parent, module = ModuleType(package), ModuleType(f"{package}.{name}")
        vars(module).update(kernels)
        vars(parent)[name] = module
        sys.modules |= {package: parent, f"{package}.{name}": module}


class _Enough(Exception):
    """The next inputs are too large."""


class _Sizes(list):  # type: ignore[type-arg]
    def __init__(self, items: Iterable[Any], most_bytes: int) -> None:
        super().__init__(items)
        self._most_bytes = most_bytes

    def append(self, item: Any) -> None:
        if nbytes(item) > (self._most_bytes if self else MOST_BYTES_ALONE):
            raise _Enough
        super().append(item)


class _Metrics:
    """Replaces the suite's base class."""

    most_bytes = MOST_BYTES

    def __init__(self, op_name: str, dtype: Any = None, is_backward: bool = False, **kwargs: Any) -> None:
        self.op_name, self.dtype, self.kwargs = op_name, dtype, kwargs
        self.input_tensors = []

    @property
    def input_tensors(self) -> list[Any]:
        return self._inputs

    @input_tensors.setter
    def input_tensors(self, value: Iterable[Any]) -> None:
        self._inputs = _Sizes(value, self.most_bytes)


def nbytes(item: Any) -> int:
    """Returns the bytes of all tensors in an argument, or in a nest of them."""
    if isinstance(item, torch.Tensor):
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(nbytes, item.values()))
    return sum(map(nbytes, item)) if isinstance(item, (tuple, list)) else 0
