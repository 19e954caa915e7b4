"""Tells installed packages from a user's own files, wherever they are installed (also by `pip install --target`)."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

_FOLDERS = {"site-packages", "dist-packages"}


def is_installed(module: str) -> bool:
    """Whether a module is of Python, of an installed package or of evo, and so the same in every process."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("evo", "operators", "fitness"):
        return True
    found = sys.modules.get(top)
    file = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    if found is None or file is None:
        return False
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    path = Path(file).resolve()
    if _FOLDERS & set(path.parts) or any(p in path.parents for p in places):
        return True
    return distribution_of(top, file) is not None


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
