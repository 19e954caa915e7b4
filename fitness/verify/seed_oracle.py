"""Computes expected outputs and budgets from the seed kernel, if it is the reference of a task.

No float64 result exists then.  Exact is what the seed computed.  The error of the reference is how far its outputs
move when its inputs move by one rounding (`moved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fitness.cuda.norms import norms
from fitness.frontend.memory import POISONS, Poison, laid_out_as
from fitness.frontend.plan import TensorRef
from fitness.tasks.task import Task
from fitness.verify.oracle import ROUNDING_RMS, ErrorBudget, Expected, budget, written_names

# Appended to a message if the seed kernel does not repeat its own results.
UNLIKE_ITSELF = (
    "; this is the kernel that says what is right, executed twice on the same inputs in other memory: it uses what it "
    "reads beyond its arrays, or what it never wrote"
)
TF32_EPS = 2.0**-10  # the precision to which tl.dot rounds float32 by default


def poison(task: Task, number: int) -> Poison:
    """Returns the fill for memory that nothing has written, by `number`.

    A seed kernel that is the reference may leave memory unwritten; the fill is then always the same.
    """
    return POISONS[0] if task.reference is None else POISONS[number % len(POISONS)]


def _step(dtype: torch.dtype, dots: bool) -> float:
    """Returns the relative spacing of the numbers that a kernel computes with when it gets `dtype`."""
    eps = torch.finfo(dtype).eps
    return max(eps, TF32_EPS) if dots else eps


def multiplies(task: Task) -> bool:
    """Returns whether the seed multiplies matrices, in which float32 is rounded to TensorFloat-32."""
    return "dot(" in task.needed_seed


def moved(task: Task, arguments: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Returns `arguments` with a few elements of each floating tensor one step of their format up or down.

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
    """Returns what a right candidate returns for `arguments`; None if an output has no finite element.

    own: what the seed kernel left for them (the windows `refs` of its plan); after_move: what it left for `moved` ones.

    Elements that it leaves as NaN, or never writes, are not compared.  Infinities must be the same, except at the edge
    of the format (`fitness.verify.compare`).
    """
    floating = [a.dtype for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    step = max((_step(dtype, multiplies(task)) for dtype in floating), default=0.0)
    exact: list[torch.Tensor] = []
    budgets: list[ErrorBudget | None] = []
    for output, other in zip(own, after_move, strict=True):
        if not output.is_floating_point():
            exact.append(output)
            budgets.append(None)
            continue
        double = output.double()
        finite = torch.isfinite(double)
        if output.numel() and not bool(finite.any()):
            return None
        defined = torch.where(finite, double, 0.0)
        shifted = other.double()  # PyTorch looks for infinities in wider types than float8 alone.
        there = torch.where(finite & torch.isfinite(shifted), shifted, defined)
        size = norms(defined, there.to(output.dtype)) if output.numel() else None
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


def _is_partial(output: torch.Tensor, budget: ErrorBudget) -> bool:
    """Returns whether a floating output has elements that are not finite, or so large that another rounding is not."""
    edge = torch.finfo(output.dtype).max - budget.max
    return bool((~(output.double().abs() < edge)).any())
