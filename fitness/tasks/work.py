"""Finds how much a case has to move and to compute at least: what its task states, else what its reference does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from evo.core.records import Case
from fitness.frontend.plan import ITEMSIZE
from fitness.frontend.recording.recorder import without_values
from fitness.tasks.task import Task

Form = Mapping[str, Any]  # of an argument, as `fitness.tasks.calls.Calls.describe` has it
_FLOATS = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64")  # the fastest to multiply first


@dataclass(frozen=True)
class Workload:
    """What a case has to move and to compute at least.

    bytes: of the arguments and results that are needed, each once; None if unknown.  flops: operations by the type of
    their operands.  basis: "stated" by the task, "counted" of its reference, or "traced" of its seed kernel.
    """

    bytes: float | None
    flops: Mapping[str, float]
    basis: str


def work_of(task: Task, case: Case, forms: Sequence[Form]) -> Workload | None:
    """Returns what task.py states of a case, and for what it leaves out what its reference does; None for neither.

    forms: of the arguments at the size of the GPU.
    """
    whole = task.bytes is not None and task.flops is not None
    found = {} if whole else counted(task, forms)
    moved = float(task.bytes(case)) if task.bytes else found.get("bytes")
    flops = float(task.flops(case)) if task.flops else found.get("flops")
    if moved is None and flops is None:
        return None
    kind = operands(task, case, forms)
    return Workload(moved, {kind: flops} if flops else {}, "stated" if task.bytes or task.flops else "counted")


def operands(task: Task, case: Case, forms: Sequence[Form]) -> str:
    """Returns the type in which a right kernel may multiply: the fastest floating one that an argument has.

    A task that states a tolerance may be computed in float16 in place of float32.
    """
    dtypes = {form["tensor"]["dtype"] for form in forms if "tensor" in form} or {case.dtype}
    kind = next((dtype for dtype in _FLOATS if dtype in dtypes), case.dtype)
    return "float16" if kind == "float32" and task.tolerance is not None else kind


def counted(task: Task, forms: Sequence[Form]) -> dict[str, float]:
    """Returns the "bytes" of all arguments and results, each once, and the "flops" of the reference.

    The reference is called on tensors without values.  PyTorch counts operations of matrix products and
    convolutions alone (`torch.utils.flop_counter`).  Empty without a reference, or if it needs values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    if task.reference is None:
        return {}
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        try:
            results = task.reference(*map(without_values, forms))
        except Exception:  # any program, which may need values
            return {}
    tensors = [r for r in tree_leaves(results) if isinstance(r, torch.Tensor)]
    if not tensors:
        return {}  # results are written into arguments
    written = sum(t.numel() * t.element_size() for t in tensors)
    flops = float(counter.get_total_flops())
    return {"bytes": bytes_of(forms) + written} | ({"flops": flops} if flops else {})


def bytes_of(forms: Sequence[Form]) -> float:
    """Returns the bytes of all tensor arguments, each counted once."""
    tensors = (form["tensor"] for form in forms if "tensor" in form)
    return float(sum(math.prod(t["shape"]) * ITEMSIZE[t["dtype"]] for t in tensors))
