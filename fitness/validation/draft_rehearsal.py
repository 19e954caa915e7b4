"""Runs the rehearsal job: loads a task that a model wrote in a sandboxed child, like evo would outside.

All of its code that would run outside runs here.  Every case is drawn and its reference computed at the size for a CPU,
and the inputs are described at the target's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evo.core.errors import TaskError
from evo.core.records import Verdict
from fitness.frontend.plan import ITEMSIZE
from fitness.sandbox.jobs import JobError
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task, load_task

FOLDER = "draft"  # a draft's name in all messages, so that equal answers have equal messages
MOST_BYTES = 4 << 30  # of the inputs of one case


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Tries a draft. payload: "task" and "kernel", the texts of task.py and kernel.py.  Returns {} if it can be used.

    Raises JobError with what is wrong with it.
    """
    folder = write(scratch, payload["task"], payload["kernel"])
    try:
        _describe(load_task(folder), scratch)
    except TaskError as error:
        raise JobError(Verdict.RUNTIME_ERROR, without_path(str(error), folder)) from error
    return {}


def write(parent: Path, task: str, kernel: str) -> Path:
    """Writes the folder of a draft, in `parent`, and returns it."""
    folder = parent / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(task, encoding="utf-8")
    (folder / "kernel.py").write_text(kernel, encoding="utf-8")
    return folder


def without_path(message: str, folder: Path) -> str:
    """Returns `message` without the place of the draft."""
    return message.replace(f"{folder}/", "").replace(str(folder), FOLDER)


def _describe(task: Task, scratch: Path) -> None:
    """Describes the inputs at the target's sizes, without memory unless inputs() looks at values."""
    calls = Calls(task, scratch)
    for case in task.cases:
        try:
            described = calls.describe(case)
        except Exception as error:  # inputs() may raise anything
            failed = f"{type(error).__name__}: {error}"
            raise TaskError(f"case {case.name!r}: inputs() fails at the size on the GPU: {failed}") from error
        size = sum(_bytes(d["tensor"]) for d in described if "tensor" in d)
        if size > MOST_BYTES:
            raise TaskError(
                f"case {case.name!r}: expected inputs of at most {MOST_BYTES >> 30} GiB, got {size >> 20} MiB; "
                "make its axes smaller"
            )


def _bytes(tensor: Mapping[str, Any]) -> int:
    reach = sum((n - 1) * s for n, s in zip(tensor["shape"], tensor["strides"], strict=True))
    return 0 if 0 in tensor["shape"] else int(ITEMSIZE[tensor["dtype"]] * (reach + 1))
