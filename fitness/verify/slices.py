"""Runs the reference of a task on parts of its inputs, for outputs of which only some elements are compared.

At full size the reference itself may take minutes: in float64, on a CPU. Most references treat the indices along some
axes independently: rows of a softmax or columns of a product of matrices.  Such axes are found by trying them at the
sizes for a CPU. The reference then computes only the requested indices of a full-size case.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from evo.core.records import Case
from fitness.cuda.norms import Norms, norms
from fitness.tasks.task import Task, run_reference
from fitness.verify import oracle
from fitness.verify.long_loops import costs_little

TRIES = 2  # inputs on which an axis must prove to be separable
AGREE = 1e-9  # relative difference that the order of a float64 summation may make
# Limits on one execution of the reference: elements of all tensors that are made, and floating-point operations.
ELEMENTS, FLOPS = 1 << 28, 1 << 34
LITTLE = 1 << 20  # elements of the arguments of a reference that decides by values, whose cost is unknown before.
# Output elements a slice has at least, if its axes are that long: a single error says little of a budget.
LEAST = 256
KEPT_BYTES = 256 << 20  # of slices that are kept: candidates of one run ask for the same ones again


@dataclass(frozen=True)
class SliceAxis:
    """An axis of a case along which an output may be computed in parts.

    arguments: dimension of the axis in each argument that has it, by the argument's position; dim: that of the output.
    """

    name: str
    arguments: Mapping[int, int]
    dim: int


@dataclass(frozen=True)
class Part:
    """Expected values of some elements of an output: `exact` (n,), in float64 unless the output holds integers."""

    exact: torch.Tensor
    budget: oracle.ErrorBudget | None


@dataclass(frozen=True)
class _Slice:
    """A slice of an output in float64 and at the task's precision; `size`: what `_size` says of it."""

    exact: torch.Tensor
    own: torch.Tensor
    size: Norms | None

    @property
    def nbytes(self) -> int:
        return self.exact.nbytes + self.own.nbytes


class Slices:
    """Expected values of chosen output elements.  Thread-safe."""

    def __init__(self, task: Task) -> None:
        """`task` must have a reference."""
        self._task = task
        self._kept: OrderedDict[str, _Slice] = OrderedDict()
        self._little: dict[tuple[str, int, tuple[int, ...]], bool] = {}  # by inputs, output and length along each axis
        self._lock = threading.Lock()

    @cached_property
    def axes(self) -> tuple[tuple[SliceAxis, ...], ...]:
        """Returns, for each output (returned tensors, then written arguments), the axes along which it is separable."""
        return _separable(self._task)

    def expected(
        self,
        case: Case,
        inputs: str,
        arguments: Sequence[Any],
        output: int,
        shape: Sequence[int],
        at: np.ndarray,
        random: np.random.Generator,
    ) -> Part | None:
        """Returns what the output of this shape holds at the indices `at` (elements, dimensions), for these arguments.

        inputs: names the arguments.  None if the reference takes too long, or is not finite there.
        """
        axes = self.axes[output] if output < len(self.axes) else ()
        chosen = {axis.name: np.unique(at[:, axis.dim]) for axis in axes}
        indices = _padded(axes, shape, chosen, random)
        found = self._computed(case, inputs, arguments, output, axes, indices)
        if found is None or not (found.size is None or oracle.usable(found.size, found.own.dtype)):
            return None
        place = [at[:, dim] for dim in range(at.shape[1])]
        for axis in axes:
            place[axis.dim] = np.searchsorted(indices[axis.name], at[:, axis.dim])
        index = tuple(torch.from_numpy(p) for p in place)
        exact, own = found.exact[index].reshape(-1), found.own[index].reshape(-1)
        budgets = [oracle.budget(size, own, self._task.tolerance) for size in (found.size, _size(exact, own))]
        return Part(exact, _larger(*budgets))

    def _computed(
        self,
        case: Case,
        inputs: str,
        arguments: Sequence[Any],
        output: int,
        axes: Sequence[SliceAxis],
        indices: Mapping[str, np.ndarray],
    ) -> _Slice | None:
        """Returns the slice of the output at these indices, None if the reference takes too long there."""
        key = hashlib.sha256(f"{inputs}:{output}".encode())
        for axis in axes:
            key.update(indices[axis.name].tobytes() + b";")
        with self._lock:  # one after the other: each takes all cores and much memory
            name = key.hexdigest()
            if name not in self._kept:
                lengths = tuple(len(indices[axis.name]) for axis in axes)
                if (inputs, output, lengths) not in self._little:
                    self._little[inputs, output, lengths] = self._costs_little(arguments, axes, indices)
                if not self._little[inputs, output, lengths]:
                    return None
                part = _narrowed(arguments, axes, indices)
                part = [_copied(new) if new is old else new for new, old in zip(part, arguments, strict=True)]
                _, every, at_own_precision = oracle.computed(self._task, case, inputs, part)
                exact, own = every[output].clone(), at_own_precision[output].clone()
                self._keep(name, _Slice(exact, own, _size(exact, own)))
            self._kept.move_to_end(name)
            return self._kept[name]

    def _costs_little(
        self, arguments: Sequence[Any], axes: Sequence[SliceAxis], indices: Mapping[str, np.ndarray]
    ) -> bool:
        """Returns whether the reference computes this slice fast; computes neither the slice nor the reference."""
        reference = self._task.reference
        assert reference is not None
        shapes = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
        little = sum(a.numel() for a in _narrowed(shapes, axes, indices) if isinstance(a, torch.Tensor)) <= LITTLE
        return costs_little(
            lambda: reference(*_narrowed(arguments, axes, indices)), elements=ELEMENTS, flops=FLOPS, by_values=little
        )

    def _keep(self, name: str, part: _Slice) -> None:
        self._kept[name] = part
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def _size(exact: torch.Tensor, own: torch.Tensor) -> Norms | None:
    """Returns how large values and the reference's own errors are; None for integers."""
    return norms(exact, own) if own.is_floating_point() else None


def _larger(one: oracle.ErrorBudget | None, other: oracle.ErrorBudget | None) -> oracle.ErrorBudget | None:
    """Returns the larger budgets: the compared elements may be larger than others in the slice."""
    if one is None or other is None:
        return one
    return oracle.ErrorBudget(max(one.rms, other.rms), max(one.max, other.max))


def _padded(
    axes: Sequence[SliceAxis], shape: Sequence[int], chosen: Mapping[str, np.ndarray], random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns `chosen` with more indices along the longest axes, until a slice of the output has LEAST elements."""
    found = dict(chosen)
    whole = math.prod(size for dim, size in enumerate(shape) if dim not in [axis.dim for axis in axes])
    for axis in sorted(axes, key=lambda axis: -shape[axis.dim]):
        elements = whole * math.prod(len(indices) for indices in found.values())
        missing = (math.ceil(LEAST / max(1, elements)) - 1) * len(found[axis.name])
        if missing > 0:
            found[axis.name] = np.union1d(found[axis.name], random.integers(0, shape[axis.dim], missing))
    return found


def _copied(argument: Any) -> Any:
    """Returns a copy that a reference may write to."""
    return argument.clone() if isinstance(argument, torch.Tensor) else argument


def _narrowed(arguments: Sequence[Any], axes: Sequence[SliceAxis], indices: Mapping[str, np.ndarray]) -> list[Any]:
    """Returns the arguments at some indices of each axis."""
    found = list(arguments)

    def left(axis: SliceAxis) -> float:
        return len(indices[axis.name]) / max(arguments[i].shape[dim] for i, dim in axis.arguments.items())

    for axis in sorted(axes, key=left):  # what leaves least comes first: the others copy less then
        for i, dim in axis.arguments.items():
            found[i] = _selected(found[i], dim, indices[axis.name])
    return found


def _selected(x: torch.Tensor, dim: int, indices: np.ndarray) -> torch.Tensor:
    """Returns `x` at these rising indices of a dimension.  A range is copied as one, in a fraction of the time."""
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first + 1 == count and x.is_contiguous():
        return torch.narrow_copy(x, dim, first, count)
    return x.index_select(dim, torch.from_numpy(np.ascontiguousarray(indices, np.int64)))


def _separable(task: Task) -> tuple[tuple[SliceAxis, ...], ...]:
    case = min((case.on_cpu() for case in task.cases), key=lambda c: math.prod(c.axes.values()))
    arguments = oracle.make_inputs(task, case, 0)
    _, outputs = run_reference(task, arguments)
    found: list[list[SliceAxis]] = [[] for _ in outputs]
    for name in case.axes:
        with suppress(Exception):  # task.py was not written for such a size: this axis is not cut
            _try(task, case, name, found)
    return tuple(tuple(axes) for axes in found)


def _try(task: Task, case: Case, name: str, found: list[list[SliceAxis]]) -> None:
    """Adds the axis `name` to those of the outputs that are separable along it, together with those found before."""
    size = case.axes[name]
    longer = replace(case, axes={**case.axes, name: 2 * size})
    some, more = (oracle.make_inputs(task, c, 0) for c in (case, longer))
    dims = [_dimension(a, b, size) for a, b in zip(some, more, strict=True)]
    arguments = {i: dim for i, dim in enumerate(dims) if dim is not None}
    if not arguments:
        return
    _, short = run_reference(task, some)
    _, long = run_reference(task, more)
    for output, (a, b) in enumerate(zip(short, long, strict=True)):
        dim = _dimension(a, b, size)
        if dim is not None:
            axes = [*found[output], SliceAxis(name, arguments, dim)]
            if all(_agrees(task, longer, output, axes, seed) for seed in range(TRIES)):
                found[output] = axes


def _dimension(a: Any, b: Any, size: int) -> int | None:
    """Returns the one dimension in which `b` is twice as long as `a`, None if they are alike.

    Raises ValueError if they differ in another way.
    """
    if not isinstance(a, torch.Tensor):
        if a != b:
            raise ValueError("a number depends on the size of the axis")
        return None
    differ = [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
    if not differ:
        return None
    if len(differ) > 1 or a.shape[differ[0]] != size or b.shape[differ[0]] != 2 * size:
        raise ValueError("the axis is not a dimension of its own")
    return differ[0]


def _agrees(task: Task, case: Case, output: int, axes: Sequence[SliceAxis], seed: int) -> bool:
    """Returns whether the output on some of the inputs is some of the output on all of them."""
    arguments = oracle.make_inputs(task, case, seed)
    random = np.random.Generator(np.random.PCG64(seed))
    chosen = {}
    for axis in axes:
        size = case.axes[axis.name]
        chosen[axis.name] = np.sort(random.choice(size, max(1, size // 2), replace=False))
    _, whole = run_reference(task, arguments, double=True)
    _, part = run_reference(task, _narrowed(arguments, axes, chosen), double=True)
    expected = whole[output]
    for axis in axes:
        expected = expected.index_select(axis.dim, torch.from_numpy(chosen[axis.name]))
    got = part[output]
    if got.shape != expected.shape:
        return False
    if not got.is_floating_point():
        return bool(torch.equal(got, expected))
    return bool(torch.allclose(got, expected, rtol=AGREE, atol=AGREE * float(expected.abs().max()), equal_nan=True))
