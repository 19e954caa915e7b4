"""What runs in a sandboxed child and how its end is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evo.core.records import Verdict


class JobError(Exception):
    """Raised inside a job when the candidate is at fault, with the verdict and the line of the candidate's source."""

    def __init__(self, verdict: Verdict, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.verdict, self.message, self.line = verdict, message, line


MOST_LINES = 1 << 31  # of a source: a line beyond is no line


def told(raw: Any) -> JobError:
    """A failure as a process with untrusted code in it tells of it: {"verdict", "message", "line"}, from JSON.

    Raises ValueError where that makes no sense, or the verdict is not the candidate's to give.
    """
    try:
        verdict, message, line = Verdict(raw["verdict"]), raw["message"], raw["line"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected an error with verdict, message and line, got {error!r}") from error
    if verdict in (Verdict.OK, Verdict.DUPLICATE, Verdict.INFRASTRUCTURE):
        raise ValueError(f"a candidate's process cannot claim the verdict {verdict}")
    if not isinstance(message, str) or type(line) is not int or not 0 <= line < MOST_LINES:
        raise ValueError("an error with a message that is no text, or a line that is none")
    return JobError(verdict, message, line)


PATIENCE = 4  # times `wall_s` at most


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    wall_s: a job that does next to nothing for so long waits for what does not come.  One that is busy may take
    PATIENCE times as long: jobs give way to everything else, and no verdict is to say how busy the machine was; one
    with the GPU may not.
    cpu_s: of each of its processes.
    """

    wall_s: float = 30.0
    cpu_s: int = 30
    memory_bytes: int = 4 << 30  # on top of what the zygote already maps
    file_bytes: int = 2 << 30  # of each of its files
    disk_bytes: int = 0  # of all files that it adds to its folder, about; 0: as many as there is room for
    result_bytes: int = 32 << 20  # of its result: a plan of a few hundred launches takes some hundred kilobytes
    scratch_bytes: int = 0  # of all files of a job of which nobody reads any: they are in memory, and gone with it

    def most_s(self, profile: str) -> float:
        """Seconds after which a job of that profile is over, whatever it does."""
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
