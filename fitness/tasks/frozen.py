"""Frozen tasks: a task.json beside task.py says which files were validated, and who wrote them.

    {"model": who wrote task.py, "prompt": hash of the prompt it answered, "rounds": answers it took,
     "validated": how, "left_out": {case: why}, "task": the task's hash, "files": {file: SHA-256}}

Nothing keeps a frozen task from being changed; whoever uses it afterwards is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "task.json"
FILES = ("task.py", "kernel.py")


def freeze(folder: Path, task_hash: str, about: Mapping[str, Any]) -> None:
    """Writes task.json; `about`: what is to be kept beside the hashes."""
    frozen = {**about, "task": task_hash, "files": {name: _digest(folder / name) for name in FILES}}
    (folder / FILE).write_text(json.dumps(frozen, indent=2) + "\n", encoding="utf-8")


def changed(folder: Path) -> str:
    """What to tell whoever uses a task that was changed since it was frozen; "" where it is not, or was never."""
    path = folder / FILE
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        differs = [name for name in FILES if files[name] != _digest(folder / name)]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read ({type(error).__name__}): what was frozen is not known; delete it"
    if not differs:
        return ""
    return (
        f"{' and '.join(differs)} in {folder} changed since the task was validated and frozen; results before and "
        f"after do not compare. Delete {path} once you take the task for your own"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
