"""What is noted of a program while it runs: kernels, host functions, and their distinct calls."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import KernelInterface

from fitness.suites.call_writer import CallWriter, tensor_paths

Site = tuple[str, int, str]  # file, line, and qualified name of the function around it
_PLAIN = (bool, int, float, str, type(None))
_PLAIN_TYPES = frozenset(_PLAIN)


@dataclass
class CallNotes:
    """One distinct call: its form and arguments (`fitness.suites.call_writer`), how often, and its time on the GPU.

    trouble: why it cannot be made again, "" if it can.  us: microseconds of `timed` launches in it, see `add_up`.
    """

    form: dict[str, Any] = field(default_factory=dict)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # parameters of the slots
    aliases: dict[str, str] = field(default_factory=dict)
    result: Any = None  # the structure of the result, see `structure_of`
    trouble: str = ""
    count: int = 0
    launches: int = 0
    timed: int = 0
    us: float = 0.0

    def data(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class DistinctCalls:
    """The distinct calls of a kernel or a host function, by what distinguishes them."""

    most: int
    by_key: dict[Any, CallNotes] = field(default_factory=dict)
    as_given: dict[Any, CallNotes] = field(default_factory=dict)  # the same, by arguments without the defaults
    rest: CallNotes = field(default_factory=CallNotes)  # of calls beyond `most`

    def find(self, key: Any) -> tuple[CallNotes, bool]:
        """Returns the notes of a call, and whether they are new."""
        notes = self.by_key.get(key)
        if notes is not None:
            return notes, False
        if len(self.by_key) >= self.most:
            return self.rest, False
        self.by_key[key] = CallNotes()
        return self.by_key[key], True

    def data(self) -> dict[str, Any]:
        return {"calls": [notes.data() for notes in self.by_key.values() if notes.count], "rest": self.rest.data()}


@dataclass
class HostNotes:
    """A host function that is watched."""

    module: str
    attribute: str
    function: Any = field(repr=False)
    calls: DistinctCalls
    missed: int = 0  # calls that were under way when they were noticed, with other arguments than at their begin
    kernels: set[str] = field(default_factory=set)

    @cached_property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


@dataclass
class KernelNotes:
    """A kernel that was launched.  kind: "triton", or "inductor" for one that torch.compile wrote."""

    module: str
    attribute: str
    kernel: Any = field(repr=False)
    kind: str
    file: str
    line: int
    calls: DistinctCalls
    sites: Counter[Site] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)  # launches in each, "" for those outside
    configs: Counter[str] = field(default_factory=Counter)  # that autotuning chose
    in_graphs: int = 0  # launches while a CUDA graph was captured
    launches: int = 0
    timed: int = 0
    us: float = 0.0

    @cached_property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


# --- times of launches ------------------------------------------------------------------------------------------------


@dataclass
class LaunchTimes:
    """Times of launches that are alike: of one kernel, with the same arguments, in the same call of a host function.

    of: the notes that they count for.  us: microseconds of as many launches as `stood_for` says, since the time of one
    may stand for several.
    """

    of: tuple[KernelNotes | CallNotes, ...]
    launches: int = 0
    stood_for: int = 0
    us: float = 0.0


def add_up(times: Iterable[LaunchTimes]) -> None:
    """Sets `us` and `timed` of kernels and calls: launches that are alike take the mean of those that were timed."""
    times = list(times)
    for notes in (notes for one in times for notes in one.of):
        notes.us, notes.timed = 0.0, 0
    for one in times:
        if one.stood_for:
            for notes in one.of:
                notes.us += one.us * one.launches / one.stood_for
                notes.timed += one.launches


# --- what distinguishes calls ----------------------------------------------------------------------------------------


def key_of(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns what distinguishes the arguments of a call from others; None if one cannot be written as text."""
    found: list[Any] = []
    storages: list[int] = []
    for value in values:
        kind = type(value)
        one = (kind, value) if kind in _PLAIN_TYPES else _key(value, storages)
        if one is None:
            return None
        found.append(one)
    return tuple(found)


def _key(value: Any, storages: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return None
        storage = value.untyped_storage().data_ptr()
        if storage not in storages:
            storages.append(storage)
        place = storages.index(storage)
        return value.dtype, value.shape, value.stride(), value.storage_offset(), value.data_ptr() & 15, place
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (tuple, list)):
        parts = [_key(part, storages) for part in value]
        return None if None in parts else (type(value), *parts)
    if isinstance(value, dict):
        parts = [_key(part, storages) for part in value.values()]
        return None if None in parts else (dict, *value, *parts)
    if isinstance(value, (torch.dtype, torch.device)) or type(value).__module__.startswith("triton."):
        return str(value)
    return None


def has_tensor(values: Sequence[Any]) -> bool:
    return next(iter(tensor_paths(list(values), "")), None) is not None


# --- writing calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Describing:
    """How arguments are described: the folder of kept values (None if they are not kept), and the rule of values."""

    folder: Path | None
    rule: Any

    def call(
        self,
        notes: CallNotes,
        space: Mapping[str, Any],
        prefix: str,
        callee: str,
        names: Sequence[str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> CallWriter:
        """Writes a call into its notes."""
        writer = CallWriter(space, self.rule, self.folder, prefix, placed=True)
        writer.write(callee, names, args, kwargs)
        notes.form, notes.arguments = writer.form(), writer.arguments
        notes.names, notes.aliases, notes.trouble = writer.parameters, writer.aliases, writer.trouble
        return writer


def bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[str], list[Any], dict[str, Any]]:
    """Returns names and values of all arguments that have a position, defaults included, and the others by name."""
    arguments = inspect.signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names, list(arguments.args), dict(arguments.kwargs)


def structure_of(result: Any, counter: list[int] | None = None) -> Any:
    """Returns the structure of a result: {"tensor": number} for tensors in order, {"value": plain value}, and lists.

    {"other": type} stands for what is neither.
    """
    counter = [0] if counter is None else counter
    if isinstance(result, torch.Tensor):
        counter[0] += 1
        return {"tensor": counter[0] - 1}
    if isinstance(result, _PLAIN):
        return {"value": result}
    if isinstance(result, (tuple, list)):
        return {type(result).__name__: [structure_of(part, counter) for part in result]}
    if isinstance(result, dict):
        return {"dict": {str(key): structure_of(part, counter) for key, part in result.items()}}
    return {"other": type(result).__name__}


def attribute_of(kernel: Any, function: Any) -> str:
    """Returns the global of the kernel's module that launches it: itself, or the tuner or heuristics around it."""
    space = function.__globals__
    for name, value in space.items():
        inner = value
        while inner is not kernel and isinstance(inner, KernelInterface) and hasattr(inner, "fn"):
            inner = inner.fn
        if inner is kernel:
            return name
    return str(function.__name__)
