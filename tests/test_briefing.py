"""What prompts say of tasks, GPUs and rules agrees with what the evaluator does."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch

import fitness.frontend.rules
from evo.core.records import Case
from fitness.briefing import inputs
from fitness.briefing.allowed import allowed, rules, task_lines
from fitness.briefing.facts import hardware_facts, reference_source, task_facts
from fitness.briefing.inputs import Arguments
from fitness.briefing.right import right_lines
from fitness.estimate.attainable import attainable_us
from fitness.frontend.compile import OPTIONS
from fitness.frontend.gate import RULES, gate
from fitness.frontend.target import TARGETS, get_target
from fitness.tasks.task import load_task, task_names
from fitness.tasks.work import Workload
from fitness.verify.oracle import expect
from operators.llm.base import TaskFacts

TARGET = TARGETS["sm_90"]


@pytest.fixture
def made(tmp_path):
    """`made(inputs, cases, more)`: a task of one argument x, twice of which is right."""

    def make(inputs, cases="[Case('a', {'N': 64})]", more="", reference="def reference(x):\n    return x * 2\n"):
        (tmp_path / "kernel.py").write_text("def f(x):\n    return x\n")
        (tmp_path / "task.py").write_text(
            f'"""Twice."""\nfrom fitness import Case\nimport torch\nentry = "f"\ncases = {cases}\n{more}\n\n'
            f"{reference}\n"
            f'def inputs(case, generator):\n    """About x."""\n    N = case.axes["N"]\n    {inputs}\n'
        )
        return load_task(tmp_path)

    return make


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_facts(name):
    task = load_task(name)
    facts = TaskFacts(**task_facts(task, TARGET))
    assert len(facts.cases) == len(task.cases) and len(facts.values) == len(task.parameters)
    defined = {n.name for n in ast.parse(facts.reference).body if isinstance(n, ast.FunctionDef)}
    assert "reference" in defined and not defined & {"inputs", "flops", "bytes"}
    assert inspect.getsource(task.reference).strip() in facts.reference
    assert "fitness" not in facts.reference and "Case(" not in facts.reference
    assert set(facts.work) == {c.name for c in task.cases if c.role == "tune"}
    assert all(work["least_us"] > 0 and work["bytes"] > 0 for work in facts.work.values())


def test_cases_name_their_arguments_and_values_those_that_all_share():
    arguments = Arguments(load_task("scatter"))
    assert arguments.case_lines()[0] == (
        "embedding (tune; M=16384, R=65536, N=512): table: float32 (65536, 512), update: float32 (16384, 512), "
        "slots: int64 (16384,)"
    )
    assert arguments.case_lines()[2].count("rows unaligned") == 2
    table, _, slots, rate = arguments.value_lines()
    assert re.fullmatch(r"table: mean 0, standard deviation 1, from -[34]\.\d to [34]\.\d", table)
    assert re.fullmatch(r"slots: from -1 to R - 1, 2\d % are -1, each at most once", slots)
    assert rate == "rate: 0.125"


def test_integers_are_bounded_by_the_axis_that_bounds_them_in_all_cases():
    values = dict(line.split(": ", 1) for line in Arguments(load_task("cross_entropy")).value_lines())
    assert values["targets"] == "from 0 to V - 1"
    values = dict(line.split(": ", 1) for line in Arguments(load_task("int8_matmul")).value_lines())
    assert values["w"] == "from -127 to 127"


def test_strides_and_unaligned_rows_are_named(made):
    task = made("return (torch.randn(N, 9, generator=generator, device=generator.device).t(),)")
    arguments = Arguments(task)
    assert arguments.case_lines() == ("a (tune; N=64): x: float32 (9, 64) with strides (1, 9), rows unaligned",)
    assert "unless strides (in elements) are given" in arguments.layout_line()
    assert "strides (1, 9) for shape (9, 64)" in " ".join(right_lines(task))  # twice a tensor has its strides
    aligned = made("return (torch.randn(N, 8, generator=generator, device=generator.device),)")
    assert Arguments(aligned).case_lines() == ("a (tune; N=64): x: float32 (64, 8)",)
    assert "every row begins at a multiple of 16 bytes" in Arguments(aligned).layout_line()


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ("torch.where(x > 0.5, 0, x)", r"mean 0\.1\d?, standard deviation 0\.1\d, from 0 to 0\.5, 5\d % zero"),
        ("(x > 0.75)", r"true in 2\d % of the elements"),
        ("(8 * x).int()", r"from 0 to 7"),
        ("(3 * x).int()", r"only 0, 1, 2"),
        ("(N * x).int().sort().values", r"from 0 to N - 1, ascending"),
        ("x + 5", r"mean 5\.5, standard deviation 0\.2[89], from 5 to 6"),
    ],
)
def test_values_are_described_as_they_are_drawn(made, drawn, words):
    task = made(f"x = torch.rand(N, generator=generator, device=generator.device)\n    return ({drawn},)")
    (line,) = Arguments(task).value_lines()
    assert re.fullmatch(f"x: {words}", line), line


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ("x", r"from 0 to N - 1, each at most once"),
        ("x.index_fill(0, torch.tensor(1), 1)", r"from 0 to N - 1"),  # one number is there twice
        ("(x == x.max()).int() + 2 * (x % 2)", r"only 0, 2, [13]"),  # one element has the third
        ("(x % 4)", r"from 0 to 3"),
    ],
)
def test_of_large_tensors_too_every_number_counts(made, drawn, words):
    """Most of what is asked is known from some evenly spread elements, which hold none of the rare ones."""
    large = f"N = {4 * inputs.SAMPLE}\n    x = torch.randperm(N, generator=generator, device=generator.device)"
    (line,) = Arguments(
        made(f"{large}\n    return ({drawn},)", f"[Case('a', {{'N': {4 * inputs.SAMPLE}}})]")
    ).value_lines()
    assert re.fullmatch(f"x: {words}", line), line


def test_values_that_are_no_numbers_are_counted(made):
    task = made(
        "x = torch.rand(N, generator=generator, device=generator.device)\n"
        "    x[:8] = float('nan')\n    x[8:16] = float('-inf')\n    return (x,)",
        reference="def reference(x):\n    return torch.nan_to_num(x, 0.0, 0.0, 0.0)\n",
    )
    assert Arguments(task).value_lines()[0].endswith("12 % NaN, 12 % infinite")


def test_descriptions_are_the_same_each_time():
    for name in ("scatter", "attention"):
        assert task_facts(load_task(name), TARGET) == task_facts(load_task(name), TARGET)


def test_the_tolerance_in_numbers_is_that_of_the_oracle():
    task = load_task("int8_matmul")
    text = " ".join(right_lines(task))
    expected = expect(task, task.cases[0].on_cpu(), 0)
    share = expected.budgets[0].rms / float(expected.outputs[0].pow(2).mean().sqrt())
    assert f"root mean square error up to about {share:.1g} of the output's" in text
    assert "up to 4 times (float16)" in text and "16 times as large" in text


def test_what_right_means_follows_from_the_task(made):
    softmax, scatter = (" ".join(right_lines(load_task(name))) for name in ("softmax", "scatter"))
    assert "Written in place: table, restored before every call" in scatter and "No argument may be changed" in softmax
    assert "no atomic additions of floats" in softmax and "NaN and infinity never pass" in softmax
    draw = "return (torch.randn(N, generator=generator, device=generator.device),)"
    loose = " ".join(right_lines(made(draw, more="tolerance = 0.01\ndeterministic = False\nstress = False")))
    assert "or 0.01 relative" in loose and "same bits" not in loose and "Do not build on their range" in loose
    alone = dataclasses.replace(load_task("softmax"), seed_source=None, stress=False)
    assert "no others are tried" in " ".join(right_lines(alone))


def test_a_seed_that_is_the_reference_is_described_as_such(made):
    task = made(
        "return (torch.randn(N, generator=generator, device=generator.device),)", reference='reference = "seed"'
    )
    text = " ".join(right_lines(task))
    assert "the seed kernel below computes" in text and "quirks included" in text and "are not compared" in text
    assert "integers and booleans must be equal" in text
    facts = task_facts(task, TARGET)
    assert facts["reference"] == "" and facts["seed"] == task.seed_source
    assert facts["work"] == {"a": {}} and facts["bytes_are"] == ""


def test_what_a_task_does_not_say_of_its_work_is_counted_from_the_reference(made):
    draw = "return (torch.randn(N, N, generator=generator, device=generator.device).half(),)"
    half, reference = "[Case('a', {'N': 64}, dtype='float16')]", "def reference(x):\n    return x @ x, x.sum()\n"
    product = task_facts(made(draw, half, reference=reference), TARGET)
    elements = 64 * 64
    assert product["work"]["a"]["bytes"] == 2 * (2 * elements + 1) and product["work"]["a"]["flops"] == 2 * 64**3
    assert product["work"]["a"]["least_us"] == attainable_us(
        Workload(2 * (2 * elements + 1), {"float16": 2 * 64**3}, "counted"), TARGET
    )
    assert product["bytes_are"] == "those of each tensor argument and of each result, each once"
    needs_values = task_facts(
        made(draw, reference="def reference(x):\n    return x[: int(x.abs().sum()) + 1]\n"), TARGET
    )
    assert needs_values["work"] == {"a": {}} and needs_values["bytes_are"] == ""
    stated = load_task("softmax")
    facts = task_facts(stated, TARGET)
    assert facts["bytes_are"] == "" and facts["work"]["square"]["bytes"] == stated.bytes(stated.cases[0])


def test_the_reference_comes_with_what_it_uses(made):
    task = made(
        "return (torch.randn(N, generator=generator, device=generator.device),)",
        more="FACTOR = 2\nOTHER = 3\n\n\ndef helper(x):\n    return FACTOR * x",
        reference="@torch.no_grad()\ndef reference(x):\n    return helper(x)\n",
    )
    assert reference_source(task) == (
        "import torch\n\nFACTOR = 2\n\ndef helper(x):\n    return FACTOR * x\n\n"
        "@torch.no_grad()\ndef reference(x):\n    return helper(x)\n"
    )


def test_the_facts_are_those_of_the_target():
    h200, h100 = (hardware_facts(get_target(name)) for name in ("sm_90", "h100"))
    assert h200["memory bandwidth"] == "4.80 TB/s" and h100["memory bandwidth"] == "3.35 TB/s"
    assert h200["shared memory"].startswith("227 KiB")
    gpu = {"name": "NVIDIA H200 X", "copy_bytes_per_s": 4.2e12, "matmul_flops": 7e14}
    measured = hardware_facts(TARGET, gpu)
    assert measured["GPU"].startswith("NVIDIA H200 X") and "4.20 TB/s" in measured["measured here"]
    slow, fast = (
        task_facts(load_task("softmax"), TARGET, {"copy_bytes_per_s": r, "matmul_flops": 7e14})["work"]
        for r in (2e12, 4e12)
    )
    assert slow["square"]["least_us"] == 2 * fast["square"]["least_us"]


# --- rules and what is allowed ---------------------------------------------------------------------------------------


def test_the_rules_are_all_that_the_gate_can_report():
    assert [r.partition(":")[0] for r in rules()] == list(RULES)
    texts = [path.read_text() for path in Path(fitness.frontend.rules.__file__).parent.glob("*.py")]
    reported = {name for t in texts for name in re.findall(r"(?:report|Finding)\(\s*\"([a-z-]+)\"", t)}
    assert len(reported) > 10
    assert reported <= set(RULES)


def test_waived_rules_are_left_out_and_the_share_of_own_kernels_is_said():
    task = load_task("softmax")
    assert len(rules(task)) == len(RULES)
    assert "no operators of PyTorch but fills and copies" in task_lines(task)[0]
    object.__setattr__(task, "allow_delegation", True)
    assert not any(r.startswith("delegate:") for r in rules(task))
    assert "at least 50 % of the bytes of the outputs" in task_lines(task)[0]
    object.__setattr__(task, "min_own_share", 0.0)
    assert "do part of the work" in task_lines(task)[0]


HOST = """import torch
import triton
import triton.language as tl


@triton.jit
def k(x, y, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


def softmax(x):
    scratch, y, zeros = torch.empty_like(x), torch.empty_like(x), torch.zeros(4, device=x.device)
    k[(1,)](x.contiguous(), scratch, B=16, num_warps=4, num_stages=3, launch_pdl=True)
    k[(1,)](scratch, y, B=16, maxnreg=64, num_ctas=1, enable_fp_fusion=True, launch_cooperative_grid=False)
    zeros.fill_(1.0)
    return y.view(x.shape)
"""


def test_the_gate_passes_what_prompts_allow():
    text = " ".join(allowed())
    assert gate(HOST, entry="softmax", allow_delegation=False) == []
    assert all(f"`{option}`" in text for option in OPTIONS - {"debug", "sanitize_overflow"})
    refused = HOST.replace("zeros.fill_(1.0)", "y = y + torch.mm(x, x)")
    assert {f.rule for f in gate(refused, entry="softmax", allow_delegation=False)} == {"delegate"}


def test_rules_that_the_seed_of_a_lenient_task_breaks_are_named():
    task = load_task("softmax")
    object.__setattr__(task, "lenient", True)
    assert len(task_lines(task)) == 1
    object.__setattr__(task, "seed_source", task.seed_source + "\n\nclass Kept(torch.autograd.Function):\n    pass\n")
    assert "definition: class `Kept`" in task_lines(task)[1]


def test_captured_calls_have_no_sizes_but_a_number():
    case = Case("call0", {"call": 0})
    task = load_task("softmax")
    square = task.cases[0]
    object.__setattr__(task, "cases", (case,))
    object.__setattr__(task, "inputs", lambda _, generator: (torch.randn(4, 4, generator=generator),))
    assert Arguments(task).case_lines() == ("call0 (tune): x: float32 (4, 4)",)
    assert square.name == "square"
