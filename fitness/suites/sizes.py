"""The sizes at which TritonBench times a file, from its script: what it calls at two of them.

A script defines `performance_metrics`: `get_input_tensors` lists inputs from small to large, `call_op(to_cuda(inputs))`
calls the kernel.  The base class that it imports is replaced by one that ends the list where it gets too large, and the
module of the kernels by the kernel part that is captured.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MOST_BYTES = 64 << 20  # of the inputs of one call: beyond the L2 cache, and quick to verify
SMALLER = (8, 64)  # times, if outputs overflow at those sizes
MOST_BYTES_ALONE = 256 << 20  # where the smallest size of a script is larger than that
_KERNELS = re.compile(r"^from (TritonBench_v1|TorchBench_v1)\.(\w+) import", re.MULTILINE)


def run(script: str, kernels: Mapping[str, Any], scratch: Path, most_bytes: int = MOST_BYTES) -> str:
    """Makes the calls at the largest size within `most_bytes` and at the one in the middle below it.

    `kernels`: the names of the kernel part.  What went wrong, "" where nothing did; calls made before count.
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
    except (Exception, SystemExit) as error:  # the code of others
        return f"{type(error).__name__}: {error}"
    return "" if inputs else problem


def _listed(made: Any) -> str:
    """Has the script list its inputs; why that ended early.  What was listed until then will do."""
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
    """What comes next is too large."""


class _Sizes(list):  # type: ignore[type-arg]
    def __init__(self, items: Iterable[Any], most_bytes: int) -> None:
        super().__init__(items)
        self._most_bytes = most_bytes

    def append(self, item: Any) -> None:
        if nbytes(item) > (self._most_bytes if self else MOST_BYTES_ALONE):
            raise _Enough
        super().append(item)


class _Metrics:
    """In the place of the suite's base class."""

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
    """Of all tensors in an argument, or in a nest of them."""
    if isinstance(item, torch.Tensor):
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(nbytes, item.values()))
    return sum(map(nbytes, item)) if isinstance(item, (tuple, list)) else 0
