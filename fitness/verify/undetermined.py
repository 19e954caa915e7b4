"""Finds elements of an output that a task's precision does not determine.

A sum of large numbers that cancels, and then a function with a step: tanh makes -1 or 1 of it, as the rounding wants.
The budget is the error of the reference, executed once.  If that met no such element, a right kernel that meets one
among millions would be wrong.  So a few elements beyond the budget are compared with the reference in the task's
precision again, on inputs that differ by rounding.  Each must lie between values that the reference gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fitness.verify.oracle import ErrorBudget

MOST, ONE_OF = 8, 10_000  # Elements of an output: at most 8, and at most one of 10,000.
TRIES = 16  # Executions of the reference. A value that half of them give is missed once in 65,536 times.

# Returns the output of the reference on inputs that differ by rounding, by number.
Again = Callable[[int], torch.Tensor]


def error_of_others(exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget, again: Again) -> float | None:
    """Returns the error of all other elements in units of the budget, None if the output is wrong.

    exact, got: the output in float64 and as a kernel left it, finite, beyond the budget.
    """
    error = (got.double() - exact).abs().reshape(-1)
    worst = error.topk(min(MOST, error.numel() // ONE_OF)).indices
    if _beyond(error.index_fill(0, worst, 0.0), budget) > 1:
        return None
    for count, place in enumerate(worst, 1):
        error[place] = 0.0
        others = _beyond(error, budget)
        if others <= 1:
            return others if _given(worst[:count], exact, got, budget, again) else None
    return None


def _beyond(error: torch.Tensor, budget: ErrorBudget) -> float:
    """Returns the errors in units of the budget."""
    rms = float(torch.linalg.vector_norm(error)) / math.sqrt(error.numel())
    return max(rms / budget.rms, float(error.max()) / budget.max)


def _given(places: torch.Tensor, exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget, again: Again) -> bool:
    """Returns whether each of these elements lies between finite values that the reference gives it."""
    value, low = got.reshape(-1)[places].double(), exact.reshape(-1)[places]
    high = low
    for number in range(TRIES):
        given = again(number).reshape(-1)[places].double()
        given = torch.where(torch.isfinite(given), given, low)
        low, high = torch.minimum(low, given), torch.maximum(high, given)
        if bool(((value >= low - budget.rms) & (value <= high + budget.rms)).all()):
            return True
    return False
