"""Chooses sizes at which loops take many iterations, for candidates that are executed without a GPU.

At the sizes for a CPU a loop over blocks mostly takes one iteration.  Mistakes from the second iteration on are not
seen: a running maximum that rescales nothing, a pointer that is not advanced.  So there is one long-loop case per axis.
The axis is as long as the interpreter can bear, beside the least sizes of all others.  The others are at least two if
it bears that too: mistakes in counting two axes together hide if one of them is a single step.

Some mistakes show only for values far apart.  They are looked for at a part of these sizes, which costs little.

An axis that the task has in odd sizes may have any size, so each such axis is also reduced to one element.

A seed kernel says at which sizes it works and how many programs it needs there.  A task without one has the sizes at
which its reference works and makes few elements: a kernel with small blocks needs no more programs than elements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from evo.core.records import Case
from fitness.frontend.plan import LaunchPlan
from fitness.tasks.calls import quiet
from fitness.tasks.task import Task, run_reference

# The plan of the seed kernel for each case, None if it cannot be recorded there.
PlansOf = Callable[[Sequence[Case]], Sequence[LaunchPlan | None]]

SEVERAL = 2  # the least size of an axis beside a long one, if it has such sizes.
PART = 16  # how many times less than a long one is a size that is tried on LONG_STRESS.
LONG_STRESS = "large"  # inputs: blocks of a long row differ by more there than an exponential bears.
SHRINK = 2  # a size that is too much is followed by half of it.
TOGETHER = 4  # cases that are recorded by one job
PROGRAMS = 64  # of all launches of the seed: the interpreter executes some hundreds to thousands a second.
# Limits on making the inputs and on the reference, which must not take long or more memory than there is.
ELEMENTS, OPERATORS, FLOPS = 1 << 22, 1 << 11, 1 << 25  # elements of all tensors that are made.
# Elements if no seed kernel tells how many programs there are: the interpreter bears programs of 16 elements each.
ELEMENTS_ALONE = 1 << 16


@dataclasses.dataclass(frozen=True)
class AddedCase(Case):
    """A size that the task itself does not have, and the variant of inputs that it is tried on."""

    variant: str = "normal"
    reduced: bool = False


def added_cases(task: Task, plans_of: PlansOf | None) -> list[AddedCase]:
    """Returns all added cases; empty if the seed kernel is the reference.

    plans_of: returns the plan of the seed kernel for each case; None for a task without a seed kernel.
    """
    if task.reference is None:
        return []
    long = long_loop_cases(task, plans_of)
    return [*long, *_in_part(task, long, plans_of), *reduced_cases(task, plans_of)]


def _in_part(task: Task, long: Sequence[AddedCase], plans_of: PlansOf | None) -> list[AddedCase]:
    """Returns the long-loop cases in part, on LONG_STRESS, if they are still longer than at the sizes for a CPU."""
    cases = []
    for case in long if task.stress else ():
        on_cpu = {axis: max(c.on_cpu().axes[axis] for c in task.cases) for axis in case.axes}
        axis = max(case.axes, key=lambda a: case.axes[a] / max(on_cpu[a], 1))
        size = case.axes[axis] // PART
        size -= case.axes[axis] % 2 and not size % 2
        if size > on_cpu[axis]:
            axes = {**case.axes, axis: size}
            cases.append(
                AddedCase(f"stretched in part to {axis}={size}", axes, case.dtype, "holdout", variant=LONG_STRESS)
            )
    return list(_bearable(task, cases, plans_of))


def long_loop_cases(task: Task, plans_of: PlansOf | None) -> list[AddedCase]:
    """Returns at most one long-loop case for each axis. plans_of: see `added_cases`."""
    found = (next(_bearable(task, sizes, plans_of), None) for sizes in _by_axis(task))
    return [case for case in found if case is not None]


def reduced_cases(task: Task, plans_of: PlansOf | None) -> list[AddedCase]:
    """Returns a case for each axis that can be 1, beside the least sizes of all others. plans_of: see `added_cases`.

    Axes that are never longer than this one stay so: they are 1 as well.  If they cannot be, the case is left out.
    """
    sizes = _sizes(task)
    least = {axis: min(found) for axis, found in sizes.items()}
    free = {axis for axis, found in sizes.items() if _is_general(found)}
    cases = []
    for axis in sorted(free, key=list(sizes).index):
        # Such a relation may mean something: the number of distinct rows of a table, for instance.
        never_longer = {a for a, found in sizes.items() if all(s <= t for s, t in zip(found, sizes[axis], strict=True))}
        ones = dict.fromkeys(never_longer & free, 1)
        if all({**least, **ones}[a] == 1 for a in never_longer):
            cases.append(
                AddedCase(f"reduced to {axis}=1", {**least, **ones}, task.cases[0].dtype, "holdout", reduced=True)
            )
    meaningful = (case for case in cases if _is_meaningful(task, case))
    return list(meaningful if plans_of is None else _with_few_programs(meaningful, plans_of))


def _sizes(task: Task) -> dict[str, list[int]]:
    """Returns all sizes that the cases have, by axis."""
    sizes = [axes for case in task.cases for axes in (case.axes, case.on_cpu().axes)]
    return {axis: [axes[axis] for axes in sizes if axis in axes] for axis in sizes[0]}


def _is_general(sizes: Sequence[int]) -> bool:
    """Returns whether 1 is a size like these: they differ, and some are odd, so no common divisor is implied."""
    return min(sizes) > 1 and len(set(sizes)) > 1 and any(size % 2 for size in sizes)


def _is_meaningful(task: Task, case: Case) -> bool:
    """Returns whether task.py can make inputs and results of this size, not larger than any of its cases.

    A result of zeros is not meaningful: errors are relative to it, so a right kernel would need all bits right.
    """
    try:
        arguments = task.inputs(case, torch.Generator().manual_seed(0))
        _, outputs = run_reference(task, arguments, double=True)
    except Exception:  # it was not written for such a size
        return False
    return all(bool(output.any()) for output in outputs if output.is_floating_point())


def _by_axis(task: Task) -> Iterator[list[AddedCase]]:
    """Yields the sizes per axis, longest first; odd if the task has odd ones, so that the last iteration is partial."""
    sizes = _sizes(task)
    least = {axis: min(found) for axis, found in sizes.items()}
    several = {axis: max(least[axis], min(SEVERAL, max(found))) for axis, found in sizes.items()}
    for axis, found in sizes.items():
        size, odd, cases = max(found), any(s % 2 for s in found), []
        while size > 2 * least[axis]:
            long = size - 1 if odd and size % 2 == 0 else size
            for others in (several, least) if several != least else (least,):
                name = f"stretched to {axis}={long}"
                cases.append(AddedCase(name, {**others, axis: long}, task.cases[0].dtype, "holdout"))
            size //= SHRINK
        yield cases


def _bearable(task: Task, cases: Iterable[AddedCase], plans_of: PlansOf | None) -> Iterator[AddedCase]:
    """Yields the cases whose inputs, reference and kernels cost little."""
    if plans_of is None:
        yield from (case for case in cases if _is_little(task, case, ELEMENTS_ALONE))
    else:
        yield from _with_few_programs((case for case in cases if _is_little(task, case, ELEMENTS)), plans_of)


def _with_few_programs(cases: Iterable[AddedCase], plans_of: PlansOf) -> Iterator[AddedCase]:
    """Yields the cases for which the seed kernel has a plan of few programs.  Several are recorded together."""
    left = iter(cases)
    while batch := list(itertools.islice(left, TOGETHER)):
        yield from (case for case, plan in zip(batch, plans_of(batch), strict=True) if _has_few_programs(plan))


def _has_few_programs(plan: LaunchPlan | None) -> bool:
    if plan is None:
        return False
    return sum(math.prod(max(config.grid for config in launch.configs)) for launch in plan.launches) <= PROGRAMS


def _is_little(task: Task, case: Case, elements: int) -> bool:
    """Returns whether inputs and reference cost little.  False if task.py fails at this size, or decides by values."""
    reference = task.reference
    assert reference is not None

    def call() -> None:
        reference(*task.inputs(case, torch.Generator().manual_seed(0)))

    return costs_little(call, elements=elements, flops=FLOPS)


def costs_little(call: Callable[[], Any], *, elements: int, flops: int, by_values: bool = False) -> bool:
    """Returns whether PyTorch makes at most `elements` elements and takes at most `flops` operations in `call`.

    Found without computing it, so False if it fails, and `by_values` if it decides by values.
    """
    try:
        fake, counter = FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False)
        with quiet(), fake, counter, _Bounded(elements):
            call()
    except (DataDependentOutputException, DynamicOutputShapeException):
        return by_values
    except Exception:  # it was not written for such a size
        return False
    return bool(counter.get_total_flops() <= flops)


class _Bounded(TorchDispatchMode):
    """Raises OverflowError if more is done than may be."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._elements, self._operators, self._most = 0, 0, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._operators += 1
        self._elements += sum(value.numel() for value in tree_leaves(result) if isinstance(value, torch.Tensor))
        if self._elements > self._most or self._operators > OPERATORS:
            raise OverflowError
        return result
