"""Lists the versions that a run's numbers depend on, besides its configuration and its task."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from evo.core import VERSION

_PACKAGES = ("evo", "operators", "fitness")
# Libraries that decide what machine code a source becomes and how it is evaluated.
_LIBRARIES = ("torch", "triton")


def versions() -> dict[str, str]:
    """Returns the version of each part that decides results; a run continues only if all are the same."""
    return {
        **own_versions(),
        "python": ".".join(map(str, sys.version_info[:2])),
        **{name: _installed(name) for name in _LIBRARIES},
    }


def own_versions() -> dict[str, str]:
    """Returns those that decide what is proposed: another build of torch may evaluate the proposals."""
    return {"evo": VERSION, "code": code_hash(Path(__file__).parents[2])}


def code_hash(root: Path, packages: Sequence[str] = _PACKAGES) -> str:
    """Returns 12 hex digits of all modules and prompt templates of `packages` under `root`, without built-in tasks.

    Built-in tasks have a hash of their own.
    """
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(p for p in (root / package).rglob("*") if p.suffix in (".py", ".j2")):
            name = path.relative_to(root).as_posix()
            if not name.startswith("fitness/tasks/builtin/"):
                digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
