"""Chooses sizes of a problem: those that fit a GPU and an interpreter, and others beside them.

A size is tried on PyTorch's meta device: shapes alone, no memory.  Sizes that the model refuses are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from evo.core.errors import TaskError
from fitness.suites.kernelbench.problem import Problem, axes_of, said, state, tensors_of

LEAST = 8  # sizes are not halved below: a kernel with one row and one column shows little
CPU_ELEMENTS = 1 << 14  # of a case under the interpreter
CPU_BYTES = 3 << 28  # of a case for a CPU at most: loading a task runs its reference several times, in float64 too

Axes = dict[str, int]


@dataclass(frozen=True)
class Extent:
    """Shapes and bytes of inputs, state and outputs at some sizes."""

    inputs: tuple[tuple[int, ...], ...]  # shapes
    state: tuple[str, ...]  # paths: what kernels get after the inputs
    elements: int
    nbytes: int
    empty: bool  # whether a result has no elements


@dataclass(frozen=True)
class Sizes:
    """own: the file's sizes, or halved to fit; other: about three quarters of them, odd if possible."""

    own: Axes
    own_cpu: Axes
    other: Axes
    other_cpu: Axes
    reduced: bool  # `own` is not what the file says


def sizes_of(text: str, most_bytes: int) -> Sizes:
    """Chooses the sizes of a problem.  Raises TaskError if it does not run on shapes alone at its own size."""
    problem, axes = Problem(text), axes_of(text)
    try:
        first = extent(problem, axes)
    except Exception as error:  # the file's own code
        raise TaskError(f"its model does not run on shapes alone: {said(error)}") from error
    steering = _steering(problem, axes)
    own = _halved(problem, axes, steering, first, lambda e: e.nbytes <= most_bytes)
    found = extent(problem, own)
    if found.nbytes > most_bytes:
        raise TaskError(
            f"takes {found.nbytes / 2**30:.1f} GiB at the least size that its model takes, more than the "
            f"{most_bytes / 2**30:.1f} GiB that are allowed"
        )
    small = _halved(problem, own, steering, found, lambda e: e.elements <= CPU_ELEMENTS)
    least = extent(problem, small)
    if least.nbytes > CPU_BYTES:
        raise TaskError(
            f"takes {least.nbytes / 2**30:.1f} GiB at the least size that its inputs allow, more than the "
            f"{CPU_BYTES / 2**30:.1f} GiB with which a task is checked on a CPU: its parameters do not shrink with them"
        )
    other, other_small = _other(problem, own, steering), _other(problem, small, steering)
    kept = [{n: sizes[n] for n in steering} for sizes in (own, small, other, other_small)]
    return Sizes(kept[0], kept[1], kept[2], kept[3], reduced=own != axes)


def extent(problem: Problem, axes: Mapping[str, int]) -> Extent:
    """Returns the extent at these sizes.  Raises whatever the file's own code raises."""
    given, model, _ = problem.drawn(axes, 0, torch.device("meta"))
    with torch.no_grad():
        result = model(*given)
    inputs = [a for a in given if isinstance(a, torch.Tensor)]
    results = tensors_of(result)
    held = list(state(model))
    tensors = [*inputs, *(value for _, value in held), *results]
    return Extent(
        tuple(tuple(a.shape) for a in inputs),
        tuple(path for path, _ in held),
        sum(t.numel() for t in tensors),
        sum(t.numel() * t.element_size() for t in tensors),
        not all(t.numel() for t in results),
    )


def _steering(problem: Problem, axes: Axes) -> list[str]:
    """Returns the integers that determine the inputs' shapes; kernel sizes and the like are not changed."""
    shapes, found = _shapes(problem, axes), []
    for name in (name for name, value in axes.items() if value > 1):
        try:
            if _shapes(problem, axes | {name: axes[name] // 2}) != shapes:
                found.append(name)
        except Exception:  # the file's own code: inputs of this size do not agree
            found.append(name)
    return found


def _shapes(problem: Problem, axes: Axes) -> list[torch.Size]:
    return [a.shape for a in problem.given(axes, 0, torch.device("meta"))[0] if isinstance(a, torch.Tensor)]


def _halved(
    problem: Problem, axes: Axes, steering: Sequence[str], found: Extent, fits: Callable[[Extent], bool]
) -> Axes:
    """Halves the largest of these sizes in alternation until it fits or nothing can be halved."""
    free = [name for name in steering if axes[name] >= 2 * LEAST]
    while free and not fits(found):
        name = max(free, key=lambda n: axes[n])
        twins = [n for n in free if axes[n] == axes[name]]
        for group in ([name], twins) if len(twins) > 1 else ([name],):
            smaller = axes | {n: axes[n] // 2 for n in group}
            there = _smaller(problem, smaller, found)
            if there is not None:
                axes, found = smaller, there
                break
        else:
            free.remove(name)
        free = [n for n in free if axes[n] >= 2 * LEAST]
    return axes


def _other(problem: Problem, axes: Axes, steering: Sequence[str]) -> Axes:
    """Each steering size at three quarters, made odd; sizes that must agree change together."""
    found = extent(problem, axes)
    done: set[str] = set()
    for name in steering:
        twins = [n for n in steering if axes[n] == axes[name]]
        if name in done or axes[name] < 4:
            continue
        for group in ([name], twins) if len(twins) > 1 else ([name],):
            smaller = axes | {n: axes[n] * 3 // 4 | 1 for n in group}
            there = _smaller(problem, smaller, found)
            if there is not None:
                axes, found = smaller, there
                done |= set(group)
                break
    return axes


def _smaller(problem: Problem, axes: Axes, than: Extent) -> Extent | None:
    """Returns the extent at `axes` if the model accepts them, the inputs are smaller, and no result is empty.

    A model with fewer layers is another one: its kernels would get other arguments.  On the meta device some versions
    of PyTorch make an empty result of sizes that convolutions refuse elsewhere.
    """
    try:
        there = extent(problem, axes)
    except Exception:  # the file's own code: these sizes do not agree
        return None
    smaller = _count(there.inputs) < _count(than.inputs)
    return there if smaller and there.state == than.state and not there.empty else None


def _count(shapes: Sequence[Sequence[int]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)
