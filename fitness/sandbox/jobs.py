"""What driver and sandboxed child share: limits, results and errors of a job, and lines of the candidate's source."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.core.records import Verdict

CANDIDATE = "candidate.py"  # the name of the candidate's source in the scratch folder of its job
MOST_LINES = 1 << 31  # of a source: a larger number is not accepted as a line.
PATIENCE = 4  # how many times `wall_s` a busy job may take at most.


class JobError(Exception):
    """The candidate is at fault: the verdict, a message, and the line of the candidate's source (0: unknown)."""

    def __init__(self, verdict: Verdict, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.verdict, self.message, self.line = verdict, message, line


def reported_error(raw: Any) -> JobError:
    """The JobError that a process with untrusted code in it reported: {"verdict", "message", "line"}, from JSON.

    Raises ValueError if that is malformed, or if the verdict is one that only the evaluator gives.
    """
    try:
        verdict, message, line = Verdict(raw["verdict"]), raw["message"], raw["line"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected an error with verdict, message and line, got {error!r}") from error
    if verdict in (Verdict.OK, Verdict.DUPLICATE, Verdict.INFRASTRUCTURE):
        raise ValueError(f"a candidate's process cannot claim the verdict {verdict}")
    if not isinstance(message, str) or type(line) is not int or not 0 <= line < MOST_LINES:
        raise ValueError("expected an error whose message is text and whose line is a line number")
    return JobError(verdict, message, line)


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    wall_s: seconds after which a job that does next to nothing is ended.  One that is busy or waits for a CPU may take
    PATIENCE times as long: a verdict must not depend on how busy the machine is.  A job with the GPU may not.
    cpu_s: CPU seconds of each of its processes.
    """

    wall_s: float = 30.0
    cpu_s: int = 30
    memory_bytes: int = 4 << 30  # on top of what the zygote already maps
    file_bytes: int = 2 << 30  # of each of its files.
    disk_bytes: int = 0  # of all files that it adds to its folder, about; 0: no limit.
    result_bytes: int = 32 << 20  # of its result: a plan of a few hundred launches takes some hundred kilobytes.
    scratch_bytes: int = 0  # size of a scratch folder in memory that ends with the job; 0: the folder is on disk.

    def most_s(self, profile: str) -> float:
        """Seconds after which a job of that profile is ended, whatever it does."""
        return self.wall_s if profile == "gpu" else PATIENCE * self.wall_s


@dataclass(frozen=True)
class JobResult:
    """How a job ended.  `value` exists only for status "ok"; otherwise `verdict` and `message` say what happened.

    status: ok | error (the job raised) | timeout | memory | crash (died by a signal or left without a result)
    """

    status: str
    value: Mapping[str, Any] | None = None
    verdict: Verdict | None = None
    message: str = ""
    line: int = 0
    seconds: float = 0.0
    # Sandbox layers that were active, e.g. ("userns", "netns", "landlock", "seccomp", "rlimits").
    layers: tuple[str, ...] = ()


def line_of_error(error: BaseException) -> int:
    """Line of the candidate's innermost frame in the traceback of `error`, or of its syntax error; 0 without one."""
    if isinstance(error, SyntaxError) and _is_candidate(error.filename or ""):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno or 0 for f in reversed(frames) if _is_candidate(f.filename)), 0)


def line_of_call() -> int:
    """Line that the candidate is executing right now, 0 if it is not on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_candidate(frame.f_code.co_filename):
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def _is_candidate(file: str) -> bool:
    return Path(file).name == CANDIDATE
