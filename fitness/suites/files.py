"""What every file of a benchmark suite has."""

from __future__ import annotations

from typing import Protocol


class SuiteFile(Protocol):
    """A file of a suite; `files` of the suite made it, its checker reads what else it holds."""

    @property
    def name(self) -> str:
        """As reports, `--only` and task folders call it: unique in the suite, valid as the name of a folder."""
        ...

    @property
    def kernels(self) -> str:
        """The source that a search starts from, or what it has to compute; its lines of code are counted."""
        ...
