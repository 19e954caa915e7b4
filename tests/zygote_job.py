"""A job for the tests of the zygote: executes the statements it is given; `answer` is its result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

warmed: list[tuple[list[str], str]] = []  # what this module's warm-up got; children inherit it


def warm_up(jobs: Mapping[str, Any], target_name: str) -> None:
    """Notes what it gets, and makes the zygote call a job busy that uses any time of a core.

    Jobs have a low priority: on a machine that is busy with other tests, one may get less than a twentieth.
    """
    warmed.append((list(jobs), target_name))
    sys.modules["__main__"].BUSY = 0.001  # type: ignore[attr-defined]


def job(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    file = scratch / "candidate.py"
    file.write_text(payload["code"])
    names: dict[str, Any] = {"scratch": scratch, "answer": {}}
    exec(compile(payload["code"], str(file), "exec"), names)
    answer: dict[str, Any] = names["answer"]
    return answer
