"""Describes the arguments of a task in words: forms at the sizes of the GPU, values as drawn at those of a CPU.

Values are drawn with one fixed seed, by the task's own `inputs`.  So a description follows from the task's files alone.
Numbers are rounded to two digits, which hides that machines may round a drawn value differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from evo.core.records import Case
from fitness.frontend.memory import ALIGNMENT
from fitness.frontend.plan import ITEMSIZE
from fitness.tasks.calls import CPU, Calls
from fitness.tasks.task import Task
from fitness.tasks.work import Form, Workload, work_of

ROW_BYTES = 16  # widest access of one thread, and what a tensor descriptor asks of strides
SEVERAL = 3  # different values or fewer are listed
SMALL, SEEDS = 1 << 16, 16  # most elements of a case that is drawn with several seeds; their number
SAMPLE = 1 << 18  # elements of a tensor that are looked at

Drawn = tuple[Case, tuple[Any, ...]]


class Arguments:
    """The arguments of a task in all cases: described once, drawn once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._described = Calls(task).described()
        self._forms: dict[str, Sequence[Form]] = {case.name: self._described[case.name] for case in task.cases}
        self._fixed = self._same_everywhere()
        self._work: dict[str, Workload | None] = {}

    def case_lines(self) -> tuple[str, ...]:
        """Returns one line for each case: its name, role, and what its arguments are at the size of the GPU.

        Left out are arguments that are the same plain value in all cases (`value_lines` has them), and None.
        """
        return tuple(f"{case.name} ({_heading(case)}): {', '.join(self._shown(case))}" for case in self.task.cases)

    def value_lines(self) -> tuple[str, ...]:
        """Returns one line for each argument: the values of a tensor as drawn, or the value that all cases share."""
        drawn = self._draw()
        lines = []
        for position, name in enumerate(self.task.parameters):
            tensors = [
                (case, values[position])
                for case, values in drawn
                if position < len(values) and isinstance(values[position], torch.Tensor) and values[position].numel()
            ]
            if self._fixed.get(position) is not None:
                lines.append(f"{name}: {self._fixed[position]!r}")
            elif tensors:
                lines.append(f"{name}: {_values(tensors)}")
        return tuple(lines)

    def layout_line(self) -> str:
        """Returns one sentence about what holds of the memory of all arguments."""
        tensors = [form["tensor"] for forms in self._forms.values() for form in forms if "tensor" in form]
        plain = all(t["strides"] == contiguous(t["shape"]) for t in tensors)
        dense = "are row-major and contiguous" + ("" if plain else " unless strides (in elements) are given")
        rows = "every row begins" if all(map(_rows_aligned, tensors)) else (
            "every row begins, unless it says `rows unaligned`,"
        )  # fmt: skip
        return f"Tensors {dense}, and begin at a multiple of {ALIGNMENT} bytes; {rows} at a multiple of 16 bytes."

    def work(self, case: Case) -> Workload | None:
        """Returns what a case has to move and to compute at least; None if that is not known."""
        if case.name not in self._work:
            self._work[case.name] = work_of(self.task, case, self._forms[case.name])
        return self._work[case.name]

    def _shown(self, case: Case) -> Iterator[str]:
        for position, (name, form) in enumerate(zip(self.task.parameters, self._forms[case.name], strict=False)):
            if position not in self._fixed and form.get("value", form) is not None:
                yield f"{name}: {_form(form)}"

    def _same_everywhere(self) -> dict[int, Any]:
        """Returns the plain values that are the same in all cases, by position."""
        found = {}
        for position in range(len(self.task.parameters)):
            given = [f[position] if position < len(f) else {"value": None} for f in self._forms.values()]
            values = [form["value"] for form in given if "value" in form]
            if len(values) == len(given) and all(type(v) is type(values[0]) and v == values[0] for v in values):
                found[position] = values[0]
        return found

    def _draw(self) -> list[Drawn]:
        """Returns draws at the sizes of a CPU, of several seeds if they are small.

        Cases with the same tensors as an earlier one are left out: in captured calls each may take seconds.
        """
        found: list[Drawn] = []
        seen: list[Any] = []
        for case in self.task.cases:
            tensors = [form.get("tensor") for form in self._described[case.name + CPU]]
            if tensors not in seen:
                seen.append(tensors)
                small = sum(math.prod(t["shape"]) for t in tensors if t) <= SMALL
                for seed in range(SEEDS if small else 1):
                    found.append((case, self.task.inputs(case.on_cpu(), torch.Generator().manual_seed(seed))))
        return found


def contiguous(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a row-major tensor, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


# --- forms -----------------------------------------------------------------------------------------------------------


def _heading(case: Case) -> str:
    """Returns the role of a case, with its sizes unless it is a captured call, which has a number only."""
    sizes = "" if set(case.axes) <= {"call"} else "; " + ", ".join(f"{k}={v}" for k, v in case.axes.items())
    return case.role + sizes


def _form(form: Form) -> str:
    if "tensor" not in form:
        return repr(form["value"])
    tensor = form["tensor"]
    layout = "" if tensor["strides"] == contiguous(tensor["shape"]) else f" with strides {tuple(tensor['strides'])}"
    rows = "" if _rows_aligned(tensor) else ", rows unaligned"
    return f"{tensor['dtype']} {tuple(tensor['shape'])}{layout}{rows}"


def _rows_aligned(tensor: Mapping[str, Any]) -> bool:
    """Returns whether all strides but those of 1 are multiples of 16 bytes."""
    size = ITEMSIZE[tensor["dtype"]]
    pairs = zip(tensor["shape"], tensor["strides"], strict=True)
    return all(n == 1 or stride in (0, 1) or stride * size % ROW_BYTES == 0 for n, stride in pairs)


# --- values ----------------------------------------------------------------------------------------------------------


def _values(tensors: Sequence[tuple[Case, torch.Tensor]]) -> str:
    """Returns what the values of one argument are, in all draws together."""
    first = tensors[0][1]
    if first.dtype is torch.bool:
        true = sum(int(t.sum()) for _, t in tensors) / sum(t.numel() for _, t in tensors)
        return f"true in {100 * true:.2g} % of the elements"
    if first.is_floating_point():
        cases = {case.name: [_sample(t).double() for c, t in tensors if c is case] for case, _ in tensors}
        return _floats([torch.cat(draws) for draws in cases.values()])
    return _integers([(case, t.long().flatten()) for case, t in tensors])


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten()
    return flat[:: max(1, flat.numel() // SAMPLE)]


def _floats(values: Sequence[torch.Tensor]) -> str:
    """Returns what floating values are; `values` by case."""
    finite = [v[torch.isfinite(v)] for v in values]
    notes = []
    for what, count in (
        ("NaN", sum(int(v.isnan().sum()) for v in values)),
        ("infinite", sum(int(v.isinf().sum()) for v in values)),
        ("zero", sum(int((v == 0).sum()) for v in values)),
    ):
        share = 100 * count / sum(v.numel() for v in values)
        if share >= 1 or (count and what != "zero"):
            notes.append(f"{share:.2g} % {what}")
    if not all(v.numel() for v in finite):
        return ", ".join(notes) or "no finite value"
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    if low == high:
        return f"all {_number(low)}"
    stds = [float(v.std(correction=0)) for v in finite]
    means = [float(v.mean()) for v in finite]
    means = [m if abs(m) >= 0.1 * s else 0.0 for m, s in zip(means, stds, strict=True)]  # chance moves a mean of zero
    text = f"mean {_range(means)}, standard deviation {_range(stds)}, from {_number(low)} to {_number(high)}"
    return ", ".join([text, *notes])


def _integers(values: Sequence[tuple[Case, torch.Tensor]]) -> str:
    least, most = (pick(int(pick_of(v)) for _, v in values) for pick, pick_of in ((min, torch.min), (max, torch.max)))
    if least == most:
        return f"all {least}"
    distinct = sorted({x for _, v in values for x in _few(v)})
    if len(distinct) <= SEVERAL:
        text = "only " + ", ".join(map(str, distinct))
    else:
        axis = _axis_above(values)
        text = f"from {least} to {f'{axis} - 1' if axis else most}{'' if axis else _size_note(values)}"
    used = [v[v >= 0] for _, v in values]
    if least == -1 and any(u.numel() for u in used):  # an index that may be missing
        missing = sum(int((v < 0).sum()) for _, v in values) / sum(v.numel() for _, v in values)
        text += f", {100 * missing:.2g} % are -1"
    if all(bool((v[1:] >= v[:-1]).all()) for _, v in values):
        text += ", ascending"
    if all(u.numel() > 1 and _all_differ(u) for u in used):
        text += ", each at most once"
    return text


def _few(v: torch.Tensor) -> list[int]:
    """Returns the different values of a tensor; of more than `SEVERAL` only one more than that."""
    some = _sample(v).unique()  # to sort all of a large tensor takes a second
    found = some if len(some) > SEVERAL else v.unique()
    return found[: SEVERAL + 1].tolist()  # type: ignore[no-any-return]


def _all_differ(v: torch.Tensor) -> bool:
    """Returns whether no value of a tensor is there twice."""
    some = _sample(v)
    return len(some.unique()) == len(some) and (len(some) == len(v) or len(v.unique()) == len(v))


def _axis_above(values: Sequence[tuple[Case, torch.Tensor]]) -> str:
    """Returns the axis that bounds the values in all cases: they stay below and come near; "" if none does."""
    highest: dict[str, tuple[Case, int]] = {}
    for case, v in values:
        _, so_far = highest.get(case.name, (case, 0))
        highest[case.name] = case, max(so_far, int(v.max()))
    for axis in values[0][0].axes:
        pairs = [(case.on_cpu().axes[axis], most) for case, most in highest.values()]
        if all(0.85 * size - 1 <= most < size for size, most in pairs):
            return axis
    return ""


def _size_note(values: Sequence[tuple[Case, torch.Tensor]]) -> str:
    """Returns a note if the range may depend on sizes, and was seen at small ones."""
    wide = values[0][1].numel() and all(int(v.max()) == int(values[0][1].max()) for _, v in values)
    real = all(case.on_cpu().axes == case.axes for case, _ in values)
    return "" if real or wide else " at a small size"


def _range(values: Sequence[float]) -> str:
    """Returns one number if the values are alike, else the least and the greatest."""
    low, high = min(values), max(values)
    if high - low <= 0.25 * max(abs(low), abs(high)):
        return _number(sum(values) / len(values))
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:.2g}"
