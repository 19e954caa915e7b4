"""Turns files of benchmark suites into task folders; the checkout is given by path."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from evo.core.errors import ConfigError


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


def python_files(folder: Path) -> list[Path]:
    """Returns the files by name; without those that begin with a dot, which systems and editors leave behind."""
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("."))


def text_of(path: Path) -> str:
    """Returns the text of a file.  Raises ConfigError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a file in UTF-8 at {path}, got: {error}; restore it, or delete it") from error
