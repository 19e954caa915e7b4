"""Sizes at which loops take many turns, for candidates that are executed without a GPU.

At the sizes for a CPU a loop over blocks mostly takes a single turn, and what is wrong from the second on is not seen:
a running maximum that rescales nothing, a pointer that is not advanced.  So each axis in turn is as long as the
interpreter can bear, beside the least sizes of all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from evo.records import Case
from fitness.plan import LaunchPlan, TensorRef
from fitness.task import Task

SHRINK = 2  # a size that is too much is followed by half of it
PROGRAMS = 128  # of all launches of the seed: the interpreter executes some thousands a second
ELEMENTS = 1 << 20  # of all tensors that the entry is given or gives
FLOPS = 1 << 25  # where the task says them


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
    for axis in known[0]:
        sizes = [axes[axis] for axes in known if axis in axes]
        size, cases = max(sizes), []
        least = {name: min(axes[name] for axes in known if name in axes) for name in known[0]}
        while size > 2 * least[axis]:
            long = size - 1 if any(s % 2 for s in sizes) and size % 2 == 0 else size
            cases.append(Case(f"stretched to {axis}={long}", {**least, axis: long}, task.cases[0].dtype, "holdout"))
            size //= SHRINK
        yield cases


def _bearable(task: Task, case: Case, plan_of: Callable[[Case], LaunchPlan | None]) -> bool:
    if task.flops is not None and task.flops(case) > FLOPS:
        return False
    plan = plan_of(case)
    if plan is None:
        return False
    programs = sum(math.prod(max(config.grid for config in launch.configs)) for launch in plan.launches)
    elements = sum(ref.numel for ref in (*plan.inputs, *plan.outputs) if isinstance(ref, TensorRef))
    return programs <= PROGRAMS and elements <= ELEMENTS
