"""A job for the tests of the zygote: executes the statements it is given; `answer` is its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def job(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    file = scratch / "candidate.py"
    file.write_text(payload["code"])
    names: dict[str, Any] = {"scratch": scratch, "answer": {}}
    exec(compile(payload["code"], str(file), "exec"), names)
    answer: dict[str, Any] = names["answer"]
    return answer
