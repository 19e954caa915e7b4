"""What prompts say about tasks, GPUs and rules agrees with what the evaluator does."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import fitness.frontend.rules
from fitness.briefing import case_lines, hardware_facts, reference_source, rules, task_facts, tolerance
from fitness.frontend.gate import RULES
from fitness.frontend.target import TARGETS, get_target
from fitness.tasks.task import load_task, task_names
from operators.llm.base import TaskFacts


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_facts(name):
    task = load_task(name)
    facts = TaskFacts(**task_facts(task))
    assert len(facts.cases) == len(task.cases)
    defined = {n.name for n in ast.parse(facts.reference).body if isinstance(n, ast.FunctionDef)}
    assert {"inputs", "reference"} <= defined
    assert not defined & {"flops", "bytes"}
    assert inspect.getsource(task.reference).strip() in facts.reference
    assert "fitness" not in facts.reference and "Case(" not in facts.reference


def test_cases_name_their_arguments():
    assert case_lines(load_task("scatter"))[0] == (
        "embedding (tune): table: float32 (65536, 512), update: float32 (16384, 512), slots: int64 (16384,), "
        "rate: 0.125"
    )


def test_strides_are_told_where_they_are_not_the_usual_ones(tmp_path):
    (tmp_path / "kernel.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "task.py").write_text(
        "from fitness import Case\nimport torch\nentry = 'f'\ntolerance = 0.01\ndeterministic = False\n"
        "cases = [Case('a', {'N': 4})]\n\n@torch.no_grad()\ndef reference(x):\n    return x * 2\n\n"
        "def inputs(case, generator):\n    return (torch.randn(case.axes['N'], 8, generator=generator).t(),)\n"
    )
    task = load_task(tmp_path)
    assert case_lines(task) == ("a (tune): x: float32 (8, 4) with strides (1, 8)",)
    assert reference_source(task).startswith("import torch\n\n@torch.no_grad()\ndef reference")
    assert "0.01 of the result" in tolerance(task) and "to the bit" not in tolerance(task)


def test_written_arguments_are_named():
    assert "written in place: table" in tolerance(load_task("scatter"))
    assert "No argument may be changed" in tolerance(load_task("softmax"))


def test_the_facts_are_those_of_the_target():
    h200, h100 = (hardware_facts(get_target(name)) for name in ("sm_90", "h100"))
    assert h200["memory bandwidth"] == "4.80 TB/s" and h100["memory bandwidth"] == "3.35 TB/s"
    assert h200["shared memory"].startswith("227 KiB")
    gpu = {"name": "NVIDIA H200 X", "copy_bytes_per_s": 4.2e12, "matmul_flops": 7e14}
    measured = hardware_facts(TARGETS["sm_90"], gpu)
    assert measured["GPU"].startswith("NVIDIA H200 X") and "4.20 TB/s" in measured["measured here"]


def test_the_rules_are_all_that_the_gate_can_report():
    assert [r.partition(":")[0] for r in rules()] == list(RULES)
    texts = [path.read_text() for path in Path(fitness.frontend.rules.__file__).parent.glob("*.py")]
    reported = {name for t in texts for name in re.findall(r"(?:report|Finding)\(\s*\"([a-z-]+)\"", t)}
    assert len(reported) > 10
    assert reported <= set(RULES)


def test_waived_rules_are_left_out(tmp_path):
    task = load_task("softmax")
    assert len(rules(task)) == len(RULES)
    object.__setattr__(task, "allow_delegation", True)
    assert not any(r.startswith("delegate:") for r in rules(task))
