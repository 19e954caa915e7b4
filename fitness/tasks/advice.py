"""Tells a user what to do if a task is too slow without a GPU, or if its own seed kernel fails."""

from __future__ import annotations

import math
import re

from evo.core.records import Case, Verdict
from fitness.tasks.task import Task

# Points of a case's axes.  Without a GPU programs run one after the other, some milliseconds each.
_MANY = 2**20


def slow_case(task: Task) -> str:
    """What to do about the largest case that runs at full size without a GPU; "" if all are small."""
    case = max((c for c in task.cases if c.cpu_axes is None), key=_points, default=None)
    if case is None or _points(case) < _MANY:
        return ""
    small = {axis: min(size, 64) for axis, size in case.axes.items()}
    return (
        f"case {case.name!r} has no cpu_axes, so without a GPU it is executed at its full size "
        f"({', '.join(f'{axis}={size:,}' for axis, size in case.axes.items())}), which may take minutes; "
        f"give it small sizes for that in task.py, e.g. cpu_axes={small}"
    )


def on_failing_seed(task: Task, verdict: Verdict, message: str) -> str:
    """What may be wrong and how to correct it, as sentences.  message: why the seed failed."""
    if verdict in (Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY) and (slow := slow_case(task)):
        return f"{slow[0].upper()}{slow[1:]}."
    advice = ["Correct kernel.py, the reference or the tolerance."]
    relative = [float(number) for number in re.findall(r"([\d.e+-]+) of the (?:largest|rms) value", message)]
    if relative and max(relative) < 1:  # `fitness.verify.compare.compare` gives these for floating numbers.
        advice.append(f"From about tolerance = {max(relative):g} on this would pass, if that is right for the task.")
    stressed = re.search(r"inputs '(?!normal')\w+'", message)
    if stressed:
        advice.append(
            f"{stressed[0]} are stressed ones, not those of the task: stress = False in task.py leaves them out."
        )
    return " ".join(advice)


def _points(case: Case) -> int:
    return math.prod(case.axes.values())
