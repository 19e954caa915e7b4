"""A task's case on inputs that the task does not draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from evo.core.records import Case
from fitness.frontend.memory import laid_out_as
from fitness.tasks.task import Task

SEED = "idle"  # keys the inputs on which idle kernels are tried


def asked(task: Task, case: Case, elsewhere: bool) -> Task:
    """The task with that case alone; elsewhere: on other inputs, with the seed kernel as the reference."""
    if not elsewhere:
        return replace(task, cases=(case,))
    inputs = _inputs_elsewhere(task.inputs)
    return replace(task, cases=(case,), inputs=inputs, reference=None, tolerance=None, stress=False)


def _inputs_elsewhere(inputs: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    def drawn(case: Case, generator: torch.Generator) -> tuple[Any, ...]:
        return tuple(_drawn(value, generator) for value in inputs(case, generator))

    return drawn


def _drawn(value: Any, generator: torch.Generator) -> Any:
    """Normal numbers, and all numbers of 8 bits; other whole numbers may be indices or lengths, and stay."""
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
