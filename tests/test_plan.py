"""Plans as they come from an untrusted process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fitness.frontend.plan import PlanError, from_json


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


X = {"t": [0, "float32", [2, 4], [6, 1], 0]}  # rows 6 apart: ends at byte 40
OWN = {"t": [1, "float32", [4], [1], 0]}
CONFIG = {"grid": [1, 1, 1], "args": {}, "options": {}, "label": ""}


def test_arguments_have_buffers_of_their_own():
    found = from_json(json.loads(plan(buffers=[[40, 0], [16, None]], inputs=[X], outputs=[OWN])))
    assert found.buffers[0].input == 0


def test_returned_tensors_are_compared_and_then_the_tensors_among_written_arguments():
    found = from_json(json.loads(plan(buffers=[[40, 0], [16, None]], inputs=[X, 3], outputs=[OWN])))
    assert [ref.buffer for ref in found.compared(())] == [1]
    assert [ref.buffer for ref in found.compared((0, 1, 2))] == [1, 0], "a number and an argument that is not given"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buffers": [[40, 0], [16, 0]]}, "buffer 1 says that it holds argument 0, and holds None"),
        ({"buffers": [[40, 0], [16, 99]]}, "holds argument 99"),
        ({"buffers": [[40, 0], [16, -1]]}, "holds argument -1"),
        ({"buffers": [[40, None], [16, None]]}, "buffer 0 says that it holds argument None, and holds 0"),
        ({"buffers": [[64, 0], [16, None]]}, "argument 0 shares its buffer of 64 bytes, or is smaller"),
        ({"inputs": [X, X], "buffers": [[40, 1], [16, None]]}, "argument 0 shares its buffer"),
        ({"steps": [{"fill": OWN, "value": "x"}]}, "expected a number to fill with, got str"),
        ({"steps": [{"op": "aten.exp.default", "args": [], "kwargs": {}, "outputs": 5, "line": 1}]}, "tensors as outp"),
        ({"steps": [{"op": "x" * 10**6, "args": [], "kwargs": {}, "outputs": [], "line": 1}]}, "of 1000000 characters"),
        ({"steps": [{"launch": "k" * 10**6, "configs": [CONFIG], "line": 1}]}, "of 1000000 characters"),
        ({"steps": [{"launch": "k", "configs": [{**CONFIG, "label": "a" * 5000}], "line": 1}]}, "has 5000 characters"),
        ({"outputs": [{"t": [1, "float32", [1] * 65, [1] * 65, 0]}]}, "window of 65 dimensions"),
    ],
)
def test_what_a_recorder_that_was_taken_over_may_not_say(change, message):
    text = plan(**{"buffers": [[40, 0], [16, None]], "inputs": [X], "outputs": [OWN], **change})
    with pytest.raises(PlanError, match=message):
        from_json(json.loads(text))
