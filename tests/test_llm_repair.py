"""`repair` from end to end: injected faults, the real evaluator, recorded answers, kernels that are ok again."""

import random
from pathlib import Path

import pytest

from evo.core.records import Candidate, Verdict
from fitness.briefing.allowed import rules
from fitness.briefing.facts import hardware_facts, task_facts
from operators.base import Draft, Parent
from operators.llm.base import LlmContext, TaskFacts
from operators.registry import LLM_OPERATORS

ANSWERS = Path(__file__).parent / "data" / "repairs"

# fault -> (text of the seed, what its first occurrence becomes, verdict, part of the message)
FAULTS = {
    "syntax": ("BLOCK_SIZE):\n        x", "BLOCK_SIZE)\n        x", Verdict.COMPILE_ERROR, "not Python"),
    "compile": ("tl.arange(0, BLOCK_SIZE)", "tl.arange(0, BLOCK_SIZE + 1)", Verdict.COMPILE_ERROR, "power of 2"),
    "shape": ("tl.exp(x - largest), axis=0)", "tl.exp(x - largest)[None, :], axis=0)", Verdict.COMPILE_ERROR, "total"),
    "wrong": ('other=-float("inf"))\n        total', "other=0.0)\n        total", Verdict.WRONG, "inputs"),
    "runtime": ("n_rows, n_cols = x.shape", "n_rows, n_cols, depth = x.shape", Verdict.RUNTIME_ERROR, "unpack"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_and_mended(evaluators, fault):
    evaluator = evaluators("softmax")
    task = evaluator.task
    old, new, verdict, words = FAULTS[fault]
    broken = Candidate(task.seed_source.replace(old, new, 1))
    failed = evaluator.evaluate(broken, seed=1, known={})
    assert failed.verdict is verdict, failed.message

    parent = Parent(
        1, broken.source, 0.0, verdict=failed.verdict, stage=failed.stage, message=failed.message,
        findings=failed.findings, builds=failed.builds,
    )  # fmt: skip
    context = LlmContext(
        random.Random(0),
        TaskFacts(**task_facts(task, evaluator.target)),
        hardware_facts(evaluator.target),
        rules(task),
        "3.6.0",
        answer="edits",
    )  # fmt: skip
    repair = LLM_OPERATORS["repair"]
    prompt = repair.prompt([parent], context)
    assert prompt is not None
    assert failed.message.splitlines()[0] in prompt.messages[1].text
    assert words in prompt.messages[1].text and new.split("\n")[0] in prompt.messages[1].text

    draft = repair.read((ANSWERS / f"{fault}.md").read_text(encoding="utf-8"), [parent])
    assert isinstance(draft, Draft), draft
    mended = evaluator.evaluate(Candidate(draft.source), seed=2, known={})
    assert mended.verdict is Verdict.OK, mended.message


def test_every_recorded_answer_is_used():
    assert {p.stem for p in ANSWERS.glob("*.md")} == set(FAULTS)
