"""Seeds of the built-in tasks as text."""

from pathlib import Path

import fitness

FOLDER = Path(fitness.__file__).parent / "tasks" / "builtin"


def seed(task: str) -> str:
    return (FOLDER / task / "kernel.py").read_text()
