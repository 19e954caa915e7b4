"""Writes small files as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from evo.core.errors import StoreError


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path`; a process that is killed meanwhile leaves what was there.

    Raises StoreError if it cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        raise StoreError(f"expected to write {path}, got: {error}; check the disk and its permissions") from error
