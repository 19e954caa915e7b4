"""Makes a task with a single case, also on inputs that the task does not draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from evo.core.records import Case
from fitness.frontend.memory import laid_out_as
from fitness.tasks.task import Task

SEED = "idle"  # keys the inputs on which idle kernels are tried.


def tried(task: Task) -> bool:
    """Returns whether full certificates try a task on such inputs: not where stressed ones are verified anyway."""
    return task.seed_source is not None and not task.stress


def single_case(task: Task, case: Case, other: bool) -> Task:
    """The task with that case alone.

    other: on inputs that the task does not draw, with the seed kernel as the reference if there is one.
    """
    if not other:
        return replace(task, cases=(case,))
    inputs = _other_inputs(task.inputs)
    reference = task.reference if task.seed_source is None else None
    return replace(task, cases=(case,), inputs=inputs, reference=reference, tolerance=None, stress=False)


def _other_inputs(inputs: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    def draw(case: Case, generator: torch.Generator) -> tuple[Any, ...]:
        return tuple(_redraw(value, generator) for value in inputs(case, generator))

    return draw


def _redraw(value: Any, generator: torch.Generator) -> Any:
    """A tensor like `value` with other numbers: normal ones, or any of 8 bits.

    Tensors of other integers may hold indices or lengths, so they stay as they are.
    """
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    if value.is_floating_point():
        drawn = torch.randn(value.shape, generator=generator, device=value.device).to(value.dtype)
    elif value.dtype in (torch.int8, torch.uint8):
        limits = torch.iinfo(value.dtype)
        options: Any = {"generator": generator, "device": value.device, "dtype": value.dtype}
        drawn = torch.randint(limits.min, limits.max + 1, value.shape, **options)
    else:
        return value
    return laid_out_as(value, drawn)
