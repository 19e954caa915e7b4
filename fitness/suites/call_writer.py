"""Writes a call as Python text: the callee, a slot for each argument, and the tensors in its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fitness.suites.values import describe, span

# The rule for the values of a tensor, if it is known how it was made; else None.
RuleOf = Callable[[torch.Tensor], "Mapping[str, Any] | None"]


class CallWriter:
    """Writes one call as Python: the callee, the place of each slot, and the tensors in its result.

    Tensors and plain values go into slots, named after the parameters; lists, dtypes and devices are written out.
    """

    def __init__(
        self, names: Mapping[str, Any], rule: RuleOf, folder: Path | None, prefix: str, *, placed: bool = False
    ) -> None:
        """Keeps the settings.

        names: those of the module that the text is for; folder: for the files of kept values, named from `prefix`;
        None if values are not kept; placed: note where tensors lie in memory, and give one slot to equal windows.
        """
        self._names, self._rule, self._folder, self._prefix, self._placed = names, rule, folder, prefix, placed
        # The data of a program is no part of the file that is made of its functions.
        self._taken = {name for name, value in names.items() if not placed or callable(value) or _is_module(value)}
        self._windows: list[tuple[torch.Tensor, str]] = []  # if `placed`: the tensors of slots
        self.slots: list[str] = []
        self.parameters: list[str] = []  # what the slots are called where they come from
        self.aliases: dict[str, str] = {}  # if `placed`: name -> slot of the same window of memory
        self.arguments: list[dict[str, Any]] = []
        self.text, self.result, self.trouble = "", "result", ""

    @property
    def takes_tensors(self) -> bool:
        return any("tensor" in argument for argument in self.arguments)

    def form(self) -> dict[str, Any]:
        return {"slots": self.slots, "call": self.text, "result": self.result}

    def write(self, callee: str, parameters: Sequence[str], args: Any, kwargs: Mapping[str, Any]) -> None:
        names = [parameters[i] if i < len(parameters) else f"argument{i}" for i in range(len(args))]
        parts = [self._value(a, n) for a, n in zip(args, names, strict=True)]
        parts += [f"{k}={self._value(v, k)}" for k, v in kwargs.items()]
        self.text = f"{callee}({', '.join(parts)})"

    def returned(self, result: Any) -> None:
        """Notes which parts of `result` are tensors, as an expression of the name `result`."""
        paths = list(tensor_paths(result, "result"))
        if isinstance(result, (tuple, list)) and len(paths) == len(result):
            paths = ["result"]
        self.result = ", ".join(paths)

    def _value(self, value: Any, name: str) -> str:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_complex():
                return self._refuse(f"argument {name} is a tensor of {value.layout}, {value.dtype}")
            if self._placed and (shared := self._shared(value, name)) is not None:
                return shared
            slot = self._slot(name)
            form = describe(value, self._rule(value), self._folder, f"{self._prefix}-{slot}")
            if self._placed:
                self._windows.append((value, slot))
                form |= {"offset": value.storage_offset(), "alignment": alignment(value)}
            self.arguments.append({"tensor": form})
            return slot
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            slot = self._slot(name)
            self.arguments.append({"value": value})
            return slot
        if isinstance(value, (tuple, list)):
            parts = [self._value(v, f"{name}_{i}") for i, v in enumerate(value)]
            comma = "," if isinstance(value, tuple) and len(parts) == 1 else ""
            inside = ", ".join(parts) + comma
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return "{" + ", ".join(f"{k!r}: {self._value(v, f'{name}_{k}')}" for k, v in value.items()) + "}"
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, torch.device):
            return "torch.device('cuda')"
        text = global_name(value, self._names) or _built(value, self._names)
        return text or self._refuse(f"argument {name} is a {type(value).__name__}")

    def _shared(self, tensor: torch.Tensor, name: str) -> str | None:
        """Returns the slot of the same window of memory; None if the memory of the tensor is its own."""
        for other, slot in self._windows:
            if not tensor.numel() or other.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                continue
            if window(other) == window(tensor):
                self.aliases[name] = slot
                return slot
            if overlap(other, tensor):
                return self._refuse(f"arguments {slot} and {name} share part of their memory")
        return None

    def _refuse(self, message: str) -> str:
        self.trouble = self.trouble or message
        return "None"

    def _slot(self, name: str) -> str:
        slot = name
        while slot in self.slots or slot in self._taken:
            slot += "_"
        self.slots.append(slot)
        self.parameters.append(name)
        return slot


def _is_module(value: Any) -> bool:
    return isinstance(value, ModuleType)


ALIGNED = 16  # bytes: Triton compiles for pointers that are multiples of it, or are not
_MOST_MARKED = 1 << 28  # elements between the first and the last of two windows


def alignment(tensor: torch.Tensor) -> int:
    """Returns the largest power of two up to 16 that divides the address, in bytes."""
    address = tensor.data_ptr()
    return min(ALIGNED, address & -address) if address else ALIGNED


def window(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns what says which elements of its memory a tensor is."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors of one storage share an element; True if that takes too much memory to see."""
    size = one.dtype.itemsize
    begins = [t.storage_offset() * t.dtype.itemsize for t in (one, other)]
    ends = [b + span(t.shape, t.stride()) * t.dtype.itemsize for b, t in zip(begins, (one, other), strict=True)]
    if ends[0] <= begins[1] or ends[1] <= begins[0]:
        return False
    first, count = min(begins), -(-(max(ends) - min(begins)) // size)
    if other.dtype.itemsize != size or (begins[1] - begins[0]) % size or count > _MOST_MARKED:
        return True
    marks = torch.zeros(count, dtype=torch.bool)
    views = [
        marks.as_strided(t.shape, t.stride(), (b - first) // size) for b, t in zip(begins, (one, other), strict=True)
    ]
    views[0].fill_(True)
    return bool(views[1].any())


def global_name(value: Any, names_of_module: Mapping[str, Any]) -> str:
    """Returns the shortest name by which a module reaches this object; "" if it has none.

    The name is a global of that module, or an attribute of a module that it imports.
    """
    names = [name for name, other in names_of_module.items() if other is value]
    for name, module in names_of_module.items():
        if isinstance(module, ModuleType):
            names += [f"{name}.{attribute}" for attribute, other in vars(module).items() if other is value]
    return min(names, key=len, default="")


def _built(value: Any, names_of_module: Mapping[str, Any]) -> str:
    """Returns a record of plain values as Python that makes it with its class in the kernel part.

    "" for other values.
    """
    kind, fields = global_name(type(value), names_of_module), dict(getattr(value, "__dict__", {}))
    if not kind:
        return ""
    parameters = inspect.signature(type(value)).parameters.values()
    if {p.name for p in parameters} != set(fields):
        return ""
    for more in [p.name for p in parameters if p.kind is p.VAR_KEYWORD]:
        fields |= fields.pop(more)
    if not all(isinstance(v, (bool, int, float, str)) for v in fields.values()):
        return ""
    return f"{kind}({', '.join(f'{k}={v!r}' for k, v in fields.items())})"


def tensor_paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield path
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from tensor_paths(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensor_paths(item, f"{path}[{key!r}]")
