"""Ends an evaluation early: `Stop` carries stage, verdict and message from any stage to the evaluator."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import Finding, Verdict
from evo.core.text import short
from fitness.sandbox.jobs import JobResult

NOTHING_COMPARED = "no inputs could be compared: the reference is never finite"


class Stop(Exception):
    """The candidate's evaluation ends here, with this verdict."""

    def __init__(
        self,
        stage: str,
        verdict: Verdict,
        message: str,
        findings: tuple[Finding, ...] = (),
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """
        seconds: time spent by part, as in `fitness.evaluator.Backend`; empty if no backend gave the verdict.

        Messages may quote a candidate, its names or its errors.  So they are sanitized and shortened here.
        """
        self.stage, self.verdict, self.message = stage, verdict, short(message)
        super().__init__(self.message)
        self.findings = tuple(replace(f, message=short(f.message)) for f in findings)
        self.seconds = seconds or {}

    def __reduce__(self) -> tuple[Any, ...]:  # By default an exception pickles its message only.
        return Stop, (self.stage, self.verdict, self.message, self.findings, self.seconds)


@contextmanager
def surviving(stage: str) -> Iterator[None]:
    """Turns any unexpected error inside into a Stop with the verdict INFRASTRUCTURE.

    It ends the evaluation of one candidate, not the run.  The cause is a bug in evo or a new trick of the candidate;
    either would come again in every resume of the run.
    """
    try:
        yield
    except (Stop, EvoError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__, limit=-1)[0]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        message = f"{type(error).__name__}: {str(error)[:2000]} (raised in {where})"
        raise Stop(stage, Verdict.INFRASTRUCTURE, message) from error


# What a job that ended without its own verdict means for the candidate.
_VERDICTS = {
    "timeout": Verdict.TIMEOUT,
    "memory": Verdict.OUT_OF_MEMORY,
    "crash": Verdict.RUNTIME_ERROR,
    "error": Verdict.RUNTIME_ERROR,
    "infrastructure": Verdict.INFRASTRUCTURE,
}


def expect_ok(stage: str, result: JobResult) -> dict:
    """The job's value.  Raises Stop with the job's verdict if it has no value."""
    if result.status == "ok":
        return dict(result.value or {})
    verdict = result.verdict or _VERDICTS[result.status]
    message = result.message or f"the {stage} process ended with status {result.status!r}"
    raise Stop(stage, verdict, *at_line(stage, message, result.line))


def at_line(stage: str, message: str, line: int) -> tuple[str, tuple[Finding, ...]]:
    """The message and findings of a Stop.  line: in the candidate's source, 0 if unknown."""
    return (f"line {line}: {message}", (Finding(rule=stage, line=line, message=message),)) if line else (message, ())
