"""Sizes at which loops take many turns, for candidates that are executed without a GPU.

At the sizes for a CPU a loop over blocks mostly takes a single turn, and what is wrong from the second on is not seen:
a running maximum that rescales nothing, a pointer that is not advanced.  So each axis in turn is as long as the
interpreter can bear, beside the least sizes of all others: at least two where it bears that too, because what is wrong
where two axes are counted together is not seen where one of them is a single step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from evo.records import Case
from fitness.calls import quiet
from fitness.plan import LaunchPlan
from fitness.task import Task

SEVERAL = 2  # the least size of an axis beside a long one, where it has such sizes
SHRINK = 2  # a size that is too much is followed by half of it
PROGRAMS = 128  # of all launches of the seed: the interpreter executes some hundreds to thousands a second
# Of making the inputs and of the reference, which must not take long, or more memory than there is.
ELEMENTS, OPERATORS, FLOPS = 1 << 22, 1 << 11, 1 << 25  # elements of all tensors that are made


def stretched(task: Task, plan_of: Callable[[Case], LaunchPlan | None]) -> list[Case]:
    """At most one case for each axis; none where what is right is what the seed kernel does.

    plan_of: the plan of the seed kernel for a case, None where there is none.
    """
    if task.reference is None:
        return []
    found = (next((case for case in sizes if _bearable(task, case, plan_of)), None) for sizes in _by_axis(task))
    return [case for case in found if case is not None]


def _by_axis(task: Task) -> Iterator[list[Case]]:
    """The longest size first, odd where the task has odd ones too: the last turn of a loop is a part of one then."""
    known = [axes for case in task.cases for axes in (case.axes, case.on_cpu().axes)]
    sizes = {axis: [axes[axis] for axes in known if axis in axes] for axis in known[0]}
    least = {axis: min(found) for axis, found in sizes.items()}
    several = {axis: max(least[axis], min(SEVERAL, max(found))) for axis, found in sizes.items()}
    for axis, found in sizes.items():
        size, odd, cases = max(found), any(s % 2 for s in found), []
        while size > 2 * least[axis]:
            long = size - 1 if odd and size % 2 == 0 else size
            for others in (several, least) if several != least else (least,):
                name = f"stretched to {axis}={long}"
                cases.append(Case(name, {**others, axis: long}, task.cases[0].dtype, "holdout"))
            size //= SHRINK
        yield cases


def _bearable(task: Task, case: Case, plan_of: Callable[[Case], LaunchPlan | None]) -> bool:
    if not _is_little(task, case) or (plan := plan_of(case)) is None:
        return False
    return sum(math.prod(max(config.grid for config in launch.configs)) for launch in plan.launches) <= PROGRAMS


def _is_little(task: Task, case: Case) -> bool:
    """Whether the inputs and the reference cost little.  Not if task.py fails at such a size, or decides by values."""
    reference = task.reference
    assert reference is not None

    def call() -> None:
        reference(*task.inputs(case, torch.Generator().manual_seed(0)))

    return costs_little(call, elements=ELEMENTS, flops=FLOPS)


def costs_little(call: Callable[[], Any], *, elements: int, flops: int, by_values: bool = False) -> bool:
    """Whether what PyTorch does in `call` makes at most so many elements and takes at most so many operations.

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
