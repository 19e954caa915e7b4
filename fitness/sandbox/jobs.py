"""What runs in a sandboxed child and how its end is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evo.records import Verdict


class JobError(Exception):
    """Raised inside a job when the candidate is at fault, with the verdict and the line of the candidate's source."""

    def __init__(self, verdict: Verdict, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.verdict, self.message, self.line = verdict, message, line


@dataclass(frozen=True)
class Limits:
    """What one job may use."""

    wall_s: float = 30.0
    cpu_s: int = 30
    memory_bytes: int = 4 << 30  # on top of what the zygote already maps
    file_bytes: int = 2 << 30


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
