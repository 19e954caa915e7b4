"""The seed kernel as the reference of a task: there is no result in float64.

Exact is then what the seed computed, and the error of the reference is how far its outputs move when its inputs move by
as much as one rounding (`moved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fitness.cuda.norms import norms
from fitness.frontend.memory import POISONS, Poison, laid_out_as
from fitness.frontend.plan import TensorRef
from fitness.tasks.task import Task
from fitness.verify.oracle import ROUNDING_RMS, Budget, Expected, budget, written_names

# What is added where the seed kernel does not do what it did itself.
UNLIKE_ITSELF = (
    "; this is the kernel that says what is right, executed twice on the same inputs in other memory: it uses what it "
    "reads beyond its arrays, or what it never wrote"
)
_TF32_EPS = 2.0**-10  # what tl.dot makes of float32 by default


def poison(task: Task, number: int) -> Poison:
    """What memory that nothing has written is filled with, one after the other by `number`.

    What a seed kernel that is the reference leaves unwritten is no error: always the same then.
    """
    return POISONS[0] if task.reference is None else POISONS[number % len(POISONS)]


def _step(dtype: torch.dtype, dots: bool) -> float:
    """Relative spacing of the numbers that a kernel computes with when it is given `dtype`."""
    eps = torch.finfo(dtype).eps
    return max(eps, _TF32_EPS) if dots else eps


def multiplies(task: Task) -> bool:
    """Whether the seed multiplies matrices, in which float32 is rounded to TensorFloat-32."""
    return "dot(" in task.seed_source


def moved(task: Task, arguments: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """`arguments` with a few elements of each floating tensor one step of their format up or down.

    As many as give the root mean square of the error of rounding.
    """
    share = (ROUNDING_RMS / 2) ** 2
    found = []
    for position, value in enumerate(arguments):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            generator = torch.Generator(value.device).manual_seed(seed * 64 + position)
            draws = torch.rand(value.shape, generator=generator, device=value.device)
            sign = torch.where(draws < share / 2, 1.0, torch.where(draws < share, -1.0, 0.0))
            dtype = torch.float64 if value.dtype is torch.float64 else torch.float32
            wide = value.to(dtype)
            shifted = wide * (1 + _step(value.dtype, multiplies(task)) * sign)
            value = laid_out_as(value, torch.where(sign == 0, wide, shifted).to(value.dtype))
        found.append(value)
    return tuple(found)


def expect(
    task: Task,
    arguments: Sequence[Any],
    structure: str,
    refs: Sequence[TensorRef],
    own: Sequence[torch.Tensor],
    after_move: Sequence[torch.Tensor],
) -> Expected | None:
    """What a right candidate returns for `arguments`: what the seed kernel left for them (`own`, the windows `refs` of
    its plan).  `after_move` is what it left for `moved` ones.

    Elements that it leaves as NaN, or never writes, are not compared; infinities must be the same, but for what lies at
    the edge of the format (`oracle.compare`).  None where an output has no finite element.
    """
    floating = [a.dtype for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    step = max((_step(dtype, multiplies(task)) for dtype in floating), default=0.0)
    exact: list[torch.Tensor] = []
    budgets: list[Budget | None] = []
    for output, other in zip(own, after_move, strict=True):
        if not output.is_floating_point():
            exact.append(output)
            budgets.append(None)
            continue
        double = output.double()
        finite = torch.isfinite(double)
        if output.numel() and not bool(finite.any()):
            return None
        known = torch.where(finite, double, 0.0)
        there = torch.where(finite & torch.isfinite(other), other.double(), known)
        size = norms(known, there.to(output.dtype)) if output.numel() else None
        budgets.append(budget(size, output, task.tolerance, step))
        exact.append(double)
    return Expected(
        structure=structure,
        outputs=tuple(exact),
        dtypes=tuple(o.dtype for o in own),
        strides=tuple(ref.strides for ref in refs),
        budgets=tuple(budgets),
        written=written_names(task, arguments),
        partial=tuple(b is not None and _is_partial(o, b) for o, b in zip(own, budgets, strict=True)),
    )


def _is_partial(output: torch.Tensor, budget: Budget) -> bool:
    """Whether a floating output has elements that are not finite, or so large that another rounding is not."""
    edge = torch.finfo(output.dtype).max - budget.max
    return bool((~(output.double().abs() < edge)).any())
