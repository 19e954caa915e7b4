"""Faults that show at full size alone, on a machine without a GPU, and the nearest right kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.core.records import Candidate, Evaluation, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.target import get_target
from fitness.tasks.task import load_task

TASK = '''"""x * 2 + row sum of x, float32."""
import torch
from fitness import Case

entry = "shifted"
cases = [
    Case("large", {"M": 6000, "N": 300}, cpu_axes={"M": 5, "N": 40}),
    Case("odd", {"M": 777, "N": 129}, role="holdout", cpu_axes={"M": 3, "N": 33}),
]

def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x * 2 + x.sum(1, keepdim=True)
'''
HEAD = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, o, M, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    mask = c < n
{body}

{more}
def shifted(x):
    M, n = x.shape
    BLOCK = triton.next_power_of_2(n)
    o = torch.{made}(x)
{launch}
    return o
"""
ROW = "row = tl.program_id(0).to(tl.int64) * n\n"
STORE = "v = tl.load(x + row + c, mask=mask, other=0.0)\ntl.store(o + row + c, v * 2 + tl.sum(v, 0), mask=mask)\n"
LAUNCH = "kernel[(M,)](x, o, M, n, BLOCK=BLOCK)\n"
# The second kernel needs what the first one computed.
SUMS = """@triton.jit
def sums(x, s, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + c, mask=c < n, other=0.0)
    tl.store(s + tl.program_id(0), tl.sum(v, 0){fault})

"""
ADD = "row = tl.program_id(0) * n\nv = tl.load(x + row + c, mask=mask)\n"
ADD += "tl.store(o + row + c, v * 2 + tl.load(M + tl.program_id(0)), mask=mask)\n"
TWO = """s = torch.empty(M, device=x.device)
sums[(M,)](x, s, n, BLOCK=BLOCK)
kernel[(M,)](x, o, s, n, BLOCK=BLOCK)
"""
TURNS = """total = tl.zeros([BLOCK], tl.float32)
for r in range(tl.program_id(0), M, tl.num_programs(0)):
    row = r * n
{reset}
    v = tl.load(x + row + c, mask=mask, other=0.0)
    total += v
    tl.store(o + row + c, v * 2 + tl.sum(total, 0), mask=mask)
"""
PERSISTENT = "kernel[(132,)](x, o, M, n, BLOCK=BLOCK)\n"


def source(body: str = ROW + STORE, launch: str = LAUNCH, more: str = "", made: str = "empty_like") -> str:
    def indented(text: str) -> str:
        return "\n".join("    " + line for line in text.rstrip().split("\n"))

    return HEAD.format(body=indented(body), launch=indented(launch), more=more, made=made)


RIGHT = {
    "a row each": source(),
    "rows in turn": source(TURNS.format(reset="    total = tl.zeros([BLOCK], tl.float32)"), PERSISTENT),
    "two kernels": source(ADD, TWO, SUMS.format(fault="")),
    "programs without work": source(ROW + "mask &= tl.program_id(0) < M\n" + STORE, LAUNCH.replace("M,)", "M + 700,)")),
    "sums by atomics": source(ROW + STORE.replace("tl.store", "tl.atomic_add"), made="zeros_like"),
    "rows backwards": source("row = (M - 1 - tl.program_id(0)) * n\n" + STORE),
    "rows in another order": source("p = tl.program_id(0)\nrow = (p // 4 * 4 + (p + 1) % 4).to(tl.int64) * n\n"
                                    "mask &= p // 4 * 4 + (p + 1) % 4 < M\n" + STORE, LAUNCH.replace("M,)", "M + 3,)")),
}  # fmt: skip
WRONG = {
    "the sum of the row before": source(TURNS.format(reset="    total = total"), PERSISTENT),
    "a branch for many rows": source(ROW + "n2 = 2\nif M > 1000:\n    n2 = 3\n" + STORE.replace("v * 2", "v * n2")),
    "a first kernel that is wrong later": source(ADD, TWO, SUMS.format(fault=" * (1 + (tl.program_id(0) > 600))")),
    "an index beyond int32": source("row = (tl.program_id(0) * 800000) // 800000 * n\n" + STORE),
    "rows that nobody writes": source(launch=LAUNCH.replace("M,)", "min(M, 5990),)")),
    "rows that stay zeros": source(launch=LAUNCH.replace("M,)", "min(M, 5990),)"), made="zeros_like"),
    "a turn too few": source(TURNS.format(reset="    total = tl.zeros([BLOCK], tl.float32)")
                             .replace("M, tl", "tl.minimum(M, 5900), tl"), PERSISTENT),
    "loads far outside": source(ROW + "tl.load(x + row + c + M // 1000 * 40000000, mask=mask)\n"
                                + STORE.replace("v * 2", "v * 2 + 0 * tl.load(x + row + M // 1000 * 40000000)")),
}  # fmt: skip


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuEvaluator]:
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.py").write_text(TASK)
    (folder / "kernel.py").write_text(RIGHT["a row each"])
    with CpuEvaluator(load_task(folder), get_target("sm_90")) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        yield evaluator


def judged(evaluator: CpuEvaluator, text: str, seed: int = 1) -> Evaluation:
    return evaluator.evaluate(Candidate(text), seed=seed, known={})


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_ok(evaluator: CpuEvaluator, name: str) -> None:
    found = judged(evaluator, RIGHT[name])
    assert found.verdict is Verdict.OK, f"{found.stage}: {found.message}"


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_wrong_at_full_size_alone_is_found(evaluator: CpuEvaluator, name: str, seed: int) -> None:
    found = judged(evaluator, WRONG[name], seed)
    assert found.verdict in (Verdict.WRONG, Verdict.RUNTIME_ERROR), found
    assert "at its full size" in found.message


def test_messages_say_where(evaluator: CpuEvaluator) -> None:
    found = judged(evaluator, WRONG["a branch for many rows"])
    assert found.message.startswith("case large (tune) at its full size: output is wrong at (")
    assert "expected" in found.message and "largest error allowed" in found.message
    found = judged(evaluator, WRONG["rows that nobody writes"])
    assert found.message.startswith("case large (tune) at its full size: no program writes output at (59")


def test_which_programs_are_executed_depends_on_the_candidate_and_a_secret(
    evaluator: CpuEvaluator, monkeypatch
) -> None:
    sampled, seen = evaluator._backend._sampled, []  # type: ignore[attr-defined]
    execute = sampled._execute

    def noted(samples, *args) -> None:
        seen.append([sorted(numbers) for sample in samples for numbers in sample.programs])
        execute(samples, *args)

    monkeypatch.setattr(sampled, "_execute", noted)
    for seed in (1, 1, 2):
        judged(evaluator, RIGHT["a row each"], seed)
    assert seen[0] == seen[1] != seen[2]
    assert all({0, 5999} <= set(chosen[0]) for chosen in seen), "the first and the last program always"
    monkeypatch.setattr(sampled, "_places", sampled._places * 0.9)
    judged(evaluator, RIGHT["a row each"], 1)
    assert seen[3] != seen[0]


def test_cases_at_which_the_seed_fails_are_left_out_and_say_why(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(WRONG["a branch for many rows"])
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        left_out = evaluator._backend._sampled.left_out  # type: ignore[attr-defined]
        case = evaluator.task.cases[0].name
        assert list(left_out) == [(case, "normal")] and "is wrong at" in left_out[case, "normal"]
        assert judged(evaluator, WRONG["a branch for many rows"] + "\n# changed\nC = 1\n").verdict is not Verdict.WRONG


def test_cases_whose_inputs_are_too_large_are_left_out_with_the_same_names(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fitness.verify.sampled.INPUT_BYTES", 1 << 20)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(RIGHT["a row each"])
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        left_out = evaluator._backend._sampled.left_out  # type: ignore[attr-defined]
        assert left_out == {("large", "normal"): "its inputs take more than 1 MiB"}
