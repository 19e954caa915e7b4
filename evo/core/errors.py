"""Defines the errors that a user can act on.  Any other exception is a bug and keeps its traceback."""

from __future__ import annotations


class EvoError(Exception):
    """Misuse or a broken environment: printed as one message without a traceback, exit code 2.

    A message says what was expected, what was got, and how to fix it.
    """


class EvoWarning(UserWarning):
    """Something a user should know of, although evo goes on."""


class TaskError(EvoError):
    """The task (not the candidate) is at fault: missing name, failing reference, wrong seed kernel."""


class StoreError(EvoError):
    """A run directory that is missing, of another version, or in use by another process."""


class ConfigError(EvoError):
    """A setting out of range or an unknown name."""


class ServiceError(EvoError):
    """A service that refused a request, or cannot be reached.

    status: of HTTP; 0 if there was no answer.  retry_after: seconds after which the same request may succeed, or None.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


def how_to_install(extra: str = "") -> str:
    """Returns the command that installs evo with all it needs, or with an extra: "gpu", "figures", "serve" or "dev"."""
    return f'.venv/bin/pip install -e ".{f"[{extra}]" if extra else ""}" in the folder of evo'
