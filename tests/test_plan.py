"""Plans as they come from an untrusted process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fitness.plan import PlanError, from_json


def plan(**changes: Any) -> str:
    return json.dumps({"buffers": [], "inputs": [], "outputs": [], "structure": "none", "steps": [], **changes})


def test_one_that_holds_together():
    assert from_json(json.loads(plan(buffers=[[16, None]]))).buffers[0].nbytes == 16


@pytest.mark.parametrize(
    "text",
    [
        plan(buffers=[[float("inf"), None]]),
        plan(buffers=[[float("nan"), None]]),
        plan(buffers=[["HUGE", None]]).replace('"HUGE"', "1e999"),
        plan(buffers=[[-5, None]]),
        plan(buffers=[[10**30, None]]),
        plan(inputs=["DEEP"]).replace('"DEEP"', "[" * 900 + "]" * 900),
        plan(outputs=[{"t": [0, "float32", [float("inf")], [1], 0]}]),
        plan(steps=[{"launch": "k", "line": float("inf"), "configs": []}]),
        plan(steps=[{}]),
        plan(buffers=3),
    ],
)
def test_one_that_does_not(text):
    with pytest.raises(PlanError):
        from_json(json.loads(text))
