"""Measures how much of a plan's work the candidate's own kernels do, and how much PyTorch operators do.

A second memory of the same layout as the plan's holds the author of each byte: an own kernel, an operator, or neither
(inputs and fills).  Copies copy the authors too.  A kernel is the author of the bytes that it changes.  So a kernel
that writes nothing, writes unused memory, or writes back old values gets no share.  The share is that of own kernels
among the bytes of the outputs that have an author.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from evo.core.records import Verdict
from fitness.frontend.aten import written
from fitness.frontend.memory import Layout
from fitness.frontend.plan import ITEMSIZE, Copy, Fill, Launch, LaunchPlan, Op, Step, TensorRef
from fitness.frontend.stages import Stop
from fitness.tasks.task import Task

NEITHER, OPERATOR, OWN = 0, 1, 2


def needs_proof(plan: LaunchPlan) -> bool:
    """Whether anything but own kernels could have written the outputs."""
    return any(not isinstance(step, Launch) for step in plan.steps)


class WriteTracker:
    """Which kind of step wrote each byte of a plan's memory (its author), tracked while the steps are executed.

    data: the plan's memory, (layout.total,) uint8.
    authors: the shadow memory with an author for each byte of it, of the same shape; it starts as zeros.
    """

    def __init__(self, layout: Layout, data: torch.Tensor, authors: torch.Tensor) -> None:
        self._layout, self._data, self._authors = layout, data, authors

    def follow(self, step: Step, execute: Callable[[], object]) -> None:
        """Executes `step`, and notes the author of what it changed."""
        match step:
            case Launch():
                before = self._data.clone()
                execute()
                self._authors.masked_fill_(self._data != before, OWN)
            case Copy():
                source = self.of(step.src)
                execute()
                self._bytes(step.dst).copy_(source.unsqueeze(-1))
            case Fill():
                execute()
                self._bytes(step.dst).fill_(NEITHER)
            case Op():
                execute()
                for ref in written(step):
                    self._bytes(ref).fill_(OPERATOR)

    def of(self, ref: TensorRef) -> torch.Tensor:
        """The author of each element of `ref`, uint8 of its shape; own for those with a byte of an own kernel."""
        return self._bytes(ref).amax(-1)

    def _bytes(self, ref: TensorRef) -> torch.Tensor:
        """The authors of a window: its shape, and the bytes of an element last."""
        size = ITEMSIZE[ref.dtype]
        shape, strides = (*ref.shape, size), (*(s * size for s in ref.strides), 1)
        start = self._authors.storage_offset() + self._layout.offsets[ref.buffer] + ref.offset * size
        return self._authors.as_strided(shape, strides, start)


@dataclass
class Share:
    """The authors of a plan's outputs, over all inputs that were tried.

    A byte counts as an own kernel's if it is that on some inputs: a kernel that clamps in place changes only half of
    what it writes.
    """

    plan: LaunchPlan
    outputs: Sequence[TensorRef]
    authors: list[torch.Tensor] = field(default_factory=list)  # of each output; empty before the first input.

    def add(self, found: WriteTracker) -> None:
        """Adds the authors on one more set of inputs."""
        new = [found.of(ref).clone() for ref in self.outputs]
        self.authors = [torch.maximum(a, b) for a, b in zip(self.authors or new, new, strict=True)]

    @property
    def own(self) -> float:
        """The share of own kernels: 1 if no operator is an author, 0 if no own kernel is."""
        if not any(ref.numel for ref in self.outputs):
            return 1.0
        own, operators = self._bytes(OWN), self._bytes(OPERATOR)
        return own / (own + operators) if own else 0.0

    def _bytes(self, author: int) -> int:
        found = zip(self.authors, self.outputs, strict=True)
        return sum(int((authors == author).sum()) * ITEMSIZE[ref.dtype] for authors, ref in found)


def check_share(task: Task, case: str, plan: LaunchPlan, own: float, what: str, stage: str) -> None:
    """Raises Stop(REJECTED) if own kernels do less than the task's share.  what: e.g. "the bytes of the outputs"."""
    least = task.min_own_share if plan.delegated else 0.0
    anything_goes = bool(plan.delegated) and task.min_own_share == 0
    if anything_goes or (own > 0 and own >= least):
        return
    wanted = f"the task asks for {least:.0%}" if plan.delegated else "they must do something"
    others = ", ".join(sorted({f"{op.name} (line {op.line})" for op in plan.delegated})) or "copies and fills"
    message = (
        f"case {case}: own kernels have a share of {own:.0%} in {what}, {wanted}; the rest is left to {others}: "
        "compute it in the Triton kernel"
    )
    raise Stop(stage, Verdict.REJECTED, message)
