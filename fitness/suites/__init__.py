"""Turns files of benchmark suites into task folders; the checkout is given by path."""

from __future__ import annotations

from pathlib import Path

from evo.core.errors import ConfigError


def python_files(folder: Path) -> list[Path]:
    """Returns the files by name; without those that begin with a dot, which systems and editors leave behind."""
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("."))


def text_of(path: Path) -> str:
    """Returns the text of a file.  Raises ConfigError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a file in UTF-8 at {path}, got: {error}; restore it, or delete it") from error
