"""The corpus of cheats and faults through the whole evaluator: none is ok, each gets the verdict its header names.

Each file of tests/hacks names its task, the verdict it must get and the stage that must give it.  Files that the gate
catches are tried again without the gate: the later stages must hold on their own.  Files of the tasks in
`ELSEWHERE` are tried by test_cpu_backend.py, which has evaluators of all built-in tasks.
"""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

import pytest

from evo.core.records import Candidate, Verdict

CORPUS = sorted((Path(__file__).parent / "hacks").glob("*.py"))
# Tasks of a few files each: to prepare evaluators of them here too would take 25 seconds of a core.
ELSEWHERE = {"attention", "gemv_batched", "rms_norm", "scatter"}


def header(path: Path) -> dict[str, str]:
    """The `name: value` lines of the docstring; for files that do not parse, of their first lines."""
    text = path.read_text(encoding="utf-8", errors="replace")
    with contextlib.suppress(SyntaxError):
        text = ast.get_docstring(ast.parse(text)) or text
    return dict(re.findall(r"^(?:#|\"\"\")?\s*(\w+):\s*(.+?)\s*$", text[:1500], re.MULTILINE))


# CPU seconds of what does not end, of what may not, and of what must not be stopped before it does on a slow machine.
ENDLESS_S, SHORT_S, LONG_S = 2, 4, 30


def judge(evaluators, path: Path, *, use_gate: bool):
    verdict = header(path)["verdict"]
    cpu_s = ENDLESS_S if verdict == "timeout" else SHORT_S if "timeout" in verdict or not use_gate else LONG_S
    evaluator = evaluators(header(path)["task"], use_gate=use_gate, cpu_s=cpu_s)
    source = path.read_text(encoding="utf-8", errors="surrogateescape")
    return evaluator.evaluate(Candidate(source), seed=1, known={})


def test_the_corpus_is_there():
    assert len(CORPUS) >= 40


def assert_verdict(evaluators, path: Path) -> None:
    """Asserts that a file of the corpus gets the verdict of its header, at the stage of its header."""
    expected = {v.strip() for v in header(path)["verdict"].split("|")}
    evaluation = judge(evaluators, path, use_gate=True)
    assert evaluation.verdict.value in expected, f"{evaluation.verdict} at {evaluation.stage}: {evaluation.message}"
    assert evaluation.stage in {s.strip() for s in header(path)["stage"].split("|")}, evaluation.message
    assert evaluation.message


@pytest.mark.parametrize("path", [p for p in CORPUS if header(p)["task"] not in ELSEWHERE], ids=lambda p: p.stem)
def test_each_cheat_gets_its_verdict(evaluators, path):
    assert_verdict(evaluators, path)


# Where the gate is all that is needed.  Files marked `harmless` gain nothing by their trick: their result is right.
GATED = [p for p in CORPUS if header(p).get("stage") == "gate" and header(p).get("harmless") != "yes"]


@pytest.mark.parametrize("path", GATED, ids=lambda p: p.stem)
def test_no_cheat_is_ok_without_the_gate(evaluators, path):
    assert judge(evaluators, path, use_gate=False).verdict is not Verdict.OK


ALL_BLOCKS = """    for at in range(BLOCK, n_cols, BLOCK):
        x = tl.load(x_ptr + row * stride + at + columns, mask=at + columns < n_cols, other=-float("inf"))
        top = tl.maximum(top, tl.max(x, axis=0))
"""
# What is wrong with a file of the corpus, and what is right instead.
NEAREST_RIGHT = {
    "half_accumulator_dot": [
        (" dtype=tl.float16)\n", " dtype=tl.float32)\n"),
        ("out_dtype=tl.float16", "out_dtype=tl.float32"),
    ],
    "holdout_too_much_shared_memory": [("triton.next_power_of_2(K)", "32")],
    "holdout_not_compiled": [("min(32, K & -K)", "max(16, min(32, K & -K))")],
    "maximum_from_zero": [("other=0.0", 'other=-float("inf")')],
    "first_block_maximum": [("    total = tl", f"{ALL_BLOCKS}    total = tl")],
    "last_pair_shifted": [("tl.minimum(2 * tl.program_id(0), n_rows - 2)", "2 * tl.program_id(0)")],
}


@pytest.mark.parametrize("stem", NEAREST_RIGHT)
def test_the_nearest_right_kernel_is_ok(evaluators, stem):
    path = next(path for path in CORPUS if path.stem == stem)
    source = path.read_text(encoding="utf-8")
    for wrong, right in NEAREST_RIGHT[stem]:
        assert source.count(wrong) == 1
        source = source.replace(wrong, right)
    evaluation = evaluators(header(path)["task"]).evaluate(Candidate(source), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, f"{evaluation.stage}: {evaluation.message}"
