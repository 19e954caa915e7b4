"""Says in words and numbers what a right result is: what it is compared with, how exactly, and what never passes.

The numbers come from the oracle's own rules (`fitness.verify.oracle.budget`), applied here to the reference's results
on inputs of a fixed seed at the small size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from evo.core.records import Case
from fitness.briefing.inputs import contiguous
from fitness.cuda.norms import Norms
from fitness.tasks import other_inputs
from fitness.tasks.task import Task
from fitness.verify.oracle import Expected, budget, expect, slack, stress_scale
from fitness.verify.seed_oracle import TF32_EPS, multiplies

_STRESSED = (
    "All floating inputs together are also tried {scales} times as large and as small (with a first row of zeros); "
    "every other one negated; multiplied by cubed normal numbers (heavy tails); with the last row and column and "
    "about eight elements 8 times as large; and far from zero: each value is its size plus the mean size, times "
    "{scales}, negative in one argument and positive in the next (the mean is about three times the deviation). Each "
    "time the tolerance is computed anew for these inputs, as above."
)
_AND_OTHERS = (
    "Inputs are drawn as described, with other random numbers each time. Do not build on their range or distribution: "
    "a certificate also says whether the kernel computes what the seed kernel does on normally distributed values."
)
_AS_DRAWN = "Inputs are drawn as described, with other random numbers each time; no others are tried."


def right_lines(task: Task) -> tuple[str, ...]:
    """Returns sentences, one line a subject, that say what passes."""
    expected = _expected(task)
    of = "the seed kernel's" if task.reference is None else "the reference's"
    lines = [_meaning(task)]
    lines += [_form(expected)] if expected else []
    lines += [f"Structure, shapes, dtypes and strides of the results are {of}.", *_tolerances(task, expected)]
    lines.append(_special(task))
    lines.append(
        f"Written in place: {', '.join(task.writes)}, restored before every call, while autotuning too. No other "
        "argument may be changed."
        if task.writes
        else "No argument may be changed."
    )
    if task.deterministic:
        lines.append("The same inputs give the same bits in every call: no atomic additions of floats.")
    scales = " or ".join(f"{scale:g}" for scale in sorted({stress_scale(d) for d in _floating(task)}))
    if task.stress and scales:
        lines.append(_STRESSED.format(scales=scales))
    else:
        lines.append(_AND_OTHERS if other_inputs.tried(task) else _AS_DRAWN)
    return tuple(lines)


def _meaning(task: Task) -> str:
    if task.reference is None:
        return (
            "Right is what the seed kernel below computes from the same inputs, its quirks included (what it rounds, "
            "masks, skips or leaves out). Results are compared with its own, not with more exact ones. "
            "Only rounding may differ, such as another order of a sum. "
            "Arguments that only divide the work, such as block sizes, may be ignored."
        )
    return "Right is what the reference below computes in float64."


def _special(task: Task) -> str:
    if task.reference is None:
        return (
            "Elements that the seed kernel leaves as NaN, or never writes, are not compared. Its "
            "infinities must be the "
            "same, except where both are at the edge of the format. All other elements must be finite."
        )
    return (
        "NaN and infinity never pass. Memory holds NaN or other odd values before each run, so an element that is not "
        "written is wrong."
    )


# --- numbers ---------------------------------------------------------------------------------------------------------


def _expected(task: Task) -> dict[str, Expected]:
    """Returns what the first tune case of each dtype expects, by the name of the case; empty if the seed decides."""
    found: dict[str, Expected] = {}
    dtypes: set[str] = set()
    for case in task.cases if task.reference is not None else ():
        if case.role == "tune" and case.dtype not in dtypes:
            dtypes.add(case.dtype)
            expected = expect(task, case.on_cpu(), 0)
            if expected is not None:
                found[case.name] = expected
    return found


def _form(expected: dict[str, Expected]) -> str:
    forms = dict.fromkeys(_formed(e) for e in expected.values())
    return "Results: " + "; or ".join(forms) + "."


def _formed(expected: Expected) -> str:
    parts: list[str] = []
    for index, dtype in enumerate(expected.dtypes):
        shape, strides = list(expected.outputs[index].shape), expected.strides[index]
        plain = list(strides) == contiguous(shape)
        layout = "" if plain else f"not contiguous (strides {tuple(strides)} for shape {tuple(shape)})"
        parts.append(f"{expected.label(index)} is {layout or 'contiguous'} {_name(dtype)}")
    kind, _, keys = expected.structure.partition(":")
    returned = {"none": "nothing is returned", "dict": f"a dict with keys {keys}"}.get(kind, f"a {kind}")
    return f"{returned}; {', '.join(parts)}"


def _tolerances(task: Task, expected: dict[str, Expected]) -> Iterator[str]:
    dtypes = {d for e in expected.values() for d in e.dtypes if d.is_floating_point} or set(_floating(task))
    times = " or ".join(
        f"{c:g} times ({', '.join(sorted(_name(d) for d in dtypes if slack(d) == c))})"
        for c in sorted({slack(d) for d in dtypes})
    )
    own = "rounding the inputs" if task.reference is None else "the reference itself at the task's precision"
    wider = f", or {task.tolerance:g} relative, whichever is more" if task.tolerance else ""
    if times:
        yield f"Tolerance: up to {times} the error of {own}{wider}, as root mean square and at the worst element."
    numbers = list(dict.fromkeys(_number(e, i) for e in expected.values() for i in range(len(e.outputs))))
    if not expected:
        numbers = [
            *(_floor(task, dtype) for dtype in _floating(task)),
            "Outputs of integers and booleans must be equal.",
        ]
    yield from filter(None, numbers)


def _number(expected: Expected, index: int) -> str:
    exact, allowed = expected.outputs[index], expected.budgets[index]
    name = f"{expected.label(index)}, {_name(expected.dtypes[index])}"
    if allowed is None:
        return f"In numbers ({name}): exact."
    rms, largest = float(exact.pow(2).mean().sqrt()), float(exact.abs().max()) if exact.numel() else 0.0
    if not rms:
        return ""
    return (
        f"In numbers ({name}): root mean square error up to about {allowed.rms / rms:.1g} of the output's, largest "
        f"error up to about {allowed.max / largest:.1g} of its largest value."
    )


def _floor(task: Task, dtype: torch.dtype) -> str:
    """Returns the least that the oracle allows for an output of `dtype` if the seed kernel is the reference."""
    step = TF32_EPS if dtype is torch.float32 and multiplies(task) else 0.0
    own = torch.zeros((), dtype=dtype)
    allowed = budget(Norms(error_rms=0.0, error_largest=0.0, rms=1.0, largest=1.0), own, task.tolerance, step)
    assert allowed is not None  # it is floating
    return (
        f"In numbers ({_name(dtype)} outputs): root mean square error up to {allowed.rms:.1g} of the "
        f"output's, largest error up to {allowed.max:.1g} of its largest value; more where rounding "
        "the inputs moves it more."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _floating(task: Task) -> list[torch.dtype]:
    """Returns the floating dtypes of the tune cases, each once."""

    def dtype(case: Case) -> torch.dtype:
        found: torch.dtype = getattr(torch, case.dtype)
        return found

    found = dict.fromkeys(dtype(case) for case in task.cases if case.role == "tune")
    return [d for d in found if d.is_floating_point and math.isfinite(torch.finfo(d).eps)]
