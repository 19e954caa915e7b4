"""Sizes at which loops take many turns, for candidates that are executed without a GPU.

At the sizes for a CPU a loop over blocks mostly takes a single turn, and what is wrong from the second on is not seen:
a running maximum that rescales nothing, a pointer that is not advanced.  So each axis in turn is as long as the
interpreter can bear, beside the least sizes of all others: at least two where it bears that too, because what is wrong
where two axes are counted together is not seen where one of them is a single step.

What is wrong for values far apart alone is looked for at a part of these sizes, which costs little beside them.

An axis that the task has in odd sizes may have any size, so each such axis in turn is also reduced to one element.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
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

SEVERAL = 2  # the least size of an axis beside a long one, where it has such sizes
PART = 16  # how many times less than a long one is a size that is tried on LONG_STRESS
LONG_STRESS = "large"  # inputs: blocks of a long row differ by more there than an exponential bears
SHRINK = 2  # a size that is too much is followed by half of it
PROGRAMS = 128  # of all launches of the seed: the interpreter executes some hundreds to thousands a second
# Of making the inputs and of the reference, which must not take long, or more memory than there is.
ELEMENTS, OPERATORS, FLOPS = 1 << 22, 1 << 11, 1 << 25  # elements of all tensors that are made


@dataclasses.dataclass(frozen=True)
class AddedCase(Case):
    """A size that is none of the task's own, and the variant of inputs that it is tried on."""

    variant: str = "normal"
    reduced: bool = False


def added(task: Task, plan_of: Callable[[Case], LaunchPlan | None]) -> list[AddedCase]:
    """All of them; none where what is right is what the seed kernel does.

    plan_of: the plan of the seed kernel for a case, None where there is none.
    """
    if task.reference is None:
        return []
    long = stretched(task, plan_of)
    return [*long, *_in_part(task, long, plan_of), *reduced(task, plan_of)]


def _in_part(task: Task, long: Sequence[AddedCase], plan_of: Callable[[Case], LaunchPlan | None]) -> list[AddedCase]:
    """The stretched cases in part, on LONG_STRESS, where they are still longer than at the sizes for a CPU."""
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
    return [case for case in cases if _bearable(task, case, plan_of)]


def stretched(task: Task, plan_of: Callable[[Case], LaunchPlan | None]) -> list[AddedCase]:
    """At most one case for each axis; `plan_of` as of `added`."""
    found = (next((case for case in sizes if _bearable(task, case, plan_of)), None) for sizes in _by_axis(task))
    return [case for case in found if case is not None]


def reduced(task: Task, plan_of: Callable[[Case], LaunchPlan | None]) -> list[AddedCase]:
    """A case for each axis that can be 1, beside the least sizes of all others; `plan_of` as of `added`.

    Axes that are longer in no case stay so: they are 1 as well, or there is none if they cannot be.
    """
    sizes = _sizes(task)
    least = {axis: min(found) for axis, found in sizes.items()}
    free = {axis for axis, found in sizes.items() if _is_general(found)}
    cases = []
    for axis in sorted(free, key=list(sizes).index):
        # Which may mean something: so many rows of a table are distinct.
        never_longer = {a for a, found in sizes.items() if all(s <= t for s, t in zip(found, sizes[axis], strict=True))}
        ones = dict.fromkeys(never_longer & free, 1)
        if all({**least, **ones}[a] == 1 for a in never_longer):
            cases.append(
                AddedCase(f"reduced to {axis}=1", {**least, **ones}, task.cases[0].dtype, "holdout", reduced=True)
            )
    return [case for case in cases if _is_meaningful(task, case) and _has_few_programs(plan_of(case))]


def _sizes(task: Task) -> dict[str, list[int]]:
    """All sizes that the cases have, by axis."""
    known = [axes for case in task.cases for axes in (case.axes, case.on_cpu().axes)]
    return {axis: [axes[axis] for axes in known if axis in axes] for axis in known[0]}


def _is_general(sizes: Sequence[int]) -> bool:
    """Whether 1 is a size like these: they differ, and some are odd, so nothing says that all divide by a number."""
    return min(sizes) > 1 and len(set(sizes)) > 1 and any(size % 2 for size in sizes)


def _is_meaningful(task: Task, case: Case) -> bool:
    """Whether task.py can make inputs and results of this size, which is no larger than any of its cases.

    Not where a result is zero throughout: errors are relative to it, so a right kernel would need all bits right.
    """
    try:
        arguments = task.inputs(case, torch.Generator().manual_seed(0))
        _, outputs = run_reference(task, arguments, double=True)
    except Exception:  # it was not written for such a size
        return False
    return all(bool(output.any()) for output in outputs if output.is_floating_point())


def _by_axis(task: Task) -> Iterator[list[AddedCase]]:
    """The longest size first, odd where the task has odd ones too: the last turn of a loop is a part of one then."""
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


def _bearable(task: Task, case: Case, plan_of: Callable[[Case], LaunchPlan | None]) -> bool:
    return _is_little(task, case) and _has_few_programs(plan_of(case))


def _has_few_programs(plan: LaunchPlan | None) -> bool:
    if plan is None:
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
