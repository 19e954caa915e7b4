"""Lines of the candidate's source: where an exception came from, and who is calling."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

CANDIDATE = "candidate.py"  # the name of the candidate's source in the scratch folder of its job


def line_of_error(error: BaseException) -> int:
    """Line of the candidate's innermost frame in the traceback of `error`, or of its syntax error; 0 without one."""
    if isinstance(error, SyntaxError) and _is_candidate(error.filename or ""):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if _is_candidate(f.filename)), 0)


def line_of_call() -> int:
    """Line that the candidate is executing right now, 0 where it is not on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_candidate(frame.f_code.co_filename):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def _is_candidate(file: str) -> bool:
    return Path(file).name == CANDIDATE
