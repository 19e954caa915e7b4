"""Says which failures are worth a repair, and how many repairs."""

from __future__ import annotations

from evo.core.records import Evaluation, Verdict

# Repairs tried for one failure and the failures that followed from it.
REPAIRS = 2
_REPAIRABLE = {
    Verdict.REJECTED,
    Verdict.COMPILE_ERROR,
    Verdict.UNSUPPORTED,
    Verdict.RUNTIME_ERROR,
    Verdict.TIMEOUT,
    Verdict.OUT_OF_MEMORY,
    Verdict.WRONG,
}


def repairable(evaluation: Evaluation) -> bool:
    """Returns whether a model could repair the failure: it has a source, and its fault is known."""
    return evaluation.verdict in _REPAIRABLE and evaluation.stage != "answer"
