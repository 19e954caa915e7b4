"""Tells installed packages from a user's own files, wherever they are installed (also by `pip install --target`)."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

_FOLDERS = {"site-packages", "dist-packages"}


def distribution_of(module: str, file: str) -> str | None:
    """Returns the name of the distribution that installed a module; None if `file` is a user's own.

    module: its dotted name.  A package that is only linked to (`pip install -e`) is a user's own.
    """
    path = Path(file).resolve()
    for name in _distributions().get(module.partition(".")[0], []):
        found = importlib.metadata.distribution(name)
        root = Path(str(found.locate_file(""))).resolve()
        if path.is_relative_to(root) and (_FOLDERS & set(path.parts) or found.read_text("RECORD") is not None):
            return name
    return None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
