"""Sizes at which loops take many turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.core.records import Candidate, Case, Check, Verdict
from fitness.cpu_backend import ADDED_S, CpuEvaluator
from fitness.frontend.plan import Config, Launch, LaunchPlan
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import Limits
from fitness.tasks.task import Task, load_task
from fitness.verify.long_loops import ELEMENTS, FLOPS, PROGRAMS, AddedCase, added_cases, long_loop_cases, reduced_cases
from fitness.verify.verify import executions, verify

SOFTMAX = load_task("softmax")


def planned(programs: int) -> LaunchPlan:
    return LaunchPlan((), (), (), "none", (Launch("kernel", (Config((programs, 1, 1), {}, {}, ""),), 1),))


def each(plan_of: Callable[[Case], LaunchPlan | None]) -> Callable[[Sequence[Case]], list[LaunchPlan | None]]:
    return lambda cases: [plan_of(case) for case in cases]


def sizes(task: Task, **limits: int) -> dict[str, int]:
    """axis -> size, of a seed that has `programs` programs, or one for so many of the first axis."""
    first = next(iter(task.cases[0].axes))

    def plan_of(case: Case) -> LaunchPlan | None:
        if case.axes[first] > limits.get("known", 1 << 40):
            return None
        return planned(case.axes[first] // limits.get("rows", 1 << 40))

    found = {}
    for case in long_loop_cases(task, each(plan_of)):
        axis, size = case.name.removeprefix("stretched to ").split("=")
        assert case.axes[axis] == int(size) and case.role == "holdout" and case.cpu_axes is None
        found[axis] = int(size)
    return found


def test_each_axis_in_turn_is_as_long_as_in_any_case_and_odd_where_cases_are() -> None:
    assert sizes(SOFTMAX) == {"M": 32767, "N": 16383}
    [rows, columns] = long_loop_cases(SOFTMAX, each(lambda case: planned(1)))
    assert rows.axes == {"M": 32767, "N": 64} and columns.axes == {"M": 3, "N": 16383}
    even = dataclasses.replace(SOFTMAX, cases=SOFTMAX.cases[:1])
    assert sizes(even) == {"M": 4096, "N": 4096}


def test_other_axes_have_several_steps_where_that_can_be_borne() -> None:
    cases = [
        Case("a", {"Z": 4, "H": 16, "S": 2048, "D": 1}, cpu_axes={"Z": 1, "H": 2, "S": 64, "D": 1}),
        Case("b", {"Z": 2, "H": 3, "S": 333, "D": 1}, cpu_axes={"Z": 2, "H": 1, "S": 45, "D": 1}),
    ]
    task = dataclasses.replace(
        SOFTMAX, cases=cases, inputs=lambda case, generator: (torch.zeros([case.axes[a] for a in "ZHSD"]),)
    )

    def found(programs_of: Callable[[dict[str, int]], int]) -> list[list[int]]:
        return [
            list(case.axes.values())
            for case in long_loop_cases(task, each(lambda case: planned(programs_of(case.axes))))
        ]

    assert found(lambda axes: 1) == [[3, 2, 45, 1], [2, 15, 45, 1], [2, 2, 2047, 1]]
    assert found(lambda axes: axes["Z"] * axes["H"] * axes["S"] // 40) == [
        [3, 2, 45, 1],
        [2, 15, 45, 1],
        [1, 1, 2047, 1],
    ]


def test_what_is_too_much_is_halved() -> None:
    assert sizes(SOFTMAX, rows=1)["M"] == PROGRAMS - 1
    assert sizes(SOFTMAX, rows=10)["M"] == 511  # 64 times 10 is less than 1023
    assert sizes(SOFTMAX, known=5000)["M"] == 4095


def test_the_reference_is_not_asked_for_more_than_it_can_bear() -> None:
    """What it costs is counted, and nothing computed: columns by columns, of any size."""
    square = dataclasses.replace(SOFTMAX, reference=lambda x: x[:1].t() * x[:1])
    assert sizes(square) == {"M": 32767, "N": 1023} and 1023**2 < ELEMENTS < 2047**2 + 6141
    product = dataclasses.replace(SOFTMAX, reference=lambda x: x @ x.t() @ x)
    assert sizes(product) == {"M": 255, "N": 16383} and 4 * 511**2 * 64 > FLOPS > 4 * 255**2 * 64
    wants = dataclasses.replace(SOFTMAX, inputs=lambda case, generator: (torch.ones(case.axes["N"], 1 << 40),))
    assert sizes(wants) == {}
    steps = dataclasses.replace(SOFTMAX, reference=lambda x: sum(x[:, i] for i in range(x.shape[1])))
    assert sizes(steps) == {"M": 16383, "N": 255}  # a few operators a column
    decides = dataclasses.replace(SOFTMAX, reference=lambda x: x[x > 0])
    assert sizes(decides) == {}


def test_no_size_is_stretched_to_less_than_twice_its_own() -> None:
    close = dataclasses.replace(SOFTMAX, cases=[Case("a", {"M": 16, "N": 400}, cpu_axes={"M": 8, "N": 100})])
    assert sizes(close) == {"N": 400}


def test_where_the_seed_says_what_is_right_there_is_none() -> None:
    assert added_cases(dataclasses.replace(SOFTMAX, reference=None), each(lambda case: planned(1))) == []
    assert long_loop_cases(dataclasses.replace(SOFTMAX, cases=[Case("one", {})]), each(lambda case: planned(1))) == []


def test_stretched_sizes_are_executed_in_all_orders() -> None:
    long = AddedCase("stretched to M=9", {"M": 9, "N": 64})
    found = [execution for execution in executions(SOFTMAX, [long]) if execution.added]
    assert [(r.case, r.variant, r.order) for r in found] == [
        (long, "normal", order) for order in ("forward", "reverse", "at once")
    ]


def test_stretched_sizes_are_tried_in_part_on_large_inputs() -> None:
    found = {case.name: (dict(case.axes), case.variant) for case in added_cases(SOFTMAX, each(lambda case: planned(1)))}
    assert found["stretched to N=16383"] == ({"M": 3, "N": 16383}, "normal")
    assert found["stretched in part to N=1023"] == ({"M": 3, "N": 1023}, "large")
    assert found["reduced to N=1"] == ({"M": 3, "N": 1}, "normal")
    assert [r.variant for r in executions(SOFTMAX, [AddedCase("a", {"M": 3, "N": 9}, variant="large")])][-1] == "large"
    plain = added_cases(dataclasses.replace(SOFTMAX, stress=False), each(lambda case: planned(1)))
    assert {case.name for case in plain} == {name for name in found if " in part " not in name}
    # What is no longer than at the sizes for a CPU shows nothing new.
    short = dataclasses.replace(SOFTMAX, cases=[Case("a", {"M": 16, "N": 400}, cpu_axes={"M": 8, "N": 100})])
    assert [case.name for case in added_cases(short, each(lambda case: planned(1)))] == ["stretched to N=400"]


def ones(task: Task, plan_of: Callable[[Case], LaunchPlan | None] = lambda case: planned(1)) -> dict[str, dict]:
    return {case.name.removeprefix("reduced to "): dict(case.axes) for case in reduced_cases(task, each(plan_of))}


def test_axes_with_odd_sizes_are_reduced_to_one_beside_the_least_of_others() -> None:
    assert ones(SOFTMAX) == {"M=1": {"M": 1, "N": 64}, "N=1": {"M": 3, "N": 1}}
    assert ones(dataclasses.replace(SOFTMAX, cases=SOFTMAX.cases[:1])) == {}  # only even ones
    same = [Case("a", {"M": 5, "N": 3}), Case("b", {"M": 2, "N": 3})]
    assert list(ones(dataclasses.replace(SOFTMAX, cases=same))) == ["M=1"]  # N is always 3: it may have to be
    there = [Case("a", {"M": 5, "N": 4}, cpu_axes={"M": 1, "N": 4})]
    assert ones(dataclasses.replace(SOFTMAX, cases=there)) == {}


def test_an_axis_that_is_never_longer_than_another_stays_so() -> None:
    ordered = [Case("a", {"M": 5, "N": 7}), Case("b", {"M": 3, "N": 4})]
    assert ones(dataclasses.replace(SOFTMAX, cases=ordered)) == {"M=1": {"M": 1, "N": 4}, "N=1": {"M": 1, "N": 1}}
    even = [Case("a", {"M": 6, "N": 7}), Case("b", {"M": 2, "N": 4})]
    assert ones(dataclasses.replace(SOFTMAX, cases=even)) == {}


def test_one_is_left_out_where_task_or_seed_cannot_do_it_or_all_results_are_zero() -> None:
    assert ones(SOFTMAX, lambda case: None) == ones(SOFTMAX, lambda case: planned(PROGRAMS + 1)) == {}

    def raises(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 1:
            raise ValueError
        return x

    assert list(ones(dataclasses.replace(SOFTMAX, reference=raises))) == ["M=1"]
    assert list(ones(dataclasses.replace(SOFTMAX, reference=lambda x: x - x[:, :1]))) == ["M=1"]


def test_sizes_for_which_a_task_has_no_inputs_are_left_out(capfd) -> None:
    def inputs(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(case.axes["M"], case.axes["N"]) + torch.zeros(3, 1),)

    assert sizes(dataclasses.replace(SOFTMAX, inputs=inputs)) == {"N": 16383}
    assert capfd.readouterr().err == ""


TASK = '''"""x * 2."""
import torch
from fitness import Case

entry = "double"
cases = [
    Case("long", {"N": 65536}, cpu_axes={"N": 100}),
    Case("odd", {"N": 777}, role="holdout", cpu_axes={"N": 33}),
]

def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x * 2
'''

KERNEL = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i, mask=i < n) * FACTOR, mask=i < n)

def double(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), BLOCK=1024)
    return y
"""
RIGHT, ONCE = KERNEL.replace("FACTOR", "2"), KERNEL.replace("FACTOR", "tl.where(start == 0, 2, 3)")


@pytest.mark.parametrize(("seed", "verdict"), [(RIGHT, Verdict.WRONG), (ONCE, Verdict.OK)])
def test_what_the_seed_does_right_is_asked_of_others(tmp_path: Path, seed: str, verdict: Verdict) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(seed)
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        first = evaluator.prepare()
        assert first.verdict is Verdict.OK
        other = evaluator.evaluate(Candidate(ONCE.replace("1024", "2048")), seed=1, known={})
    assert other.verdict is verdict, other.message
    if verdict is Verdict.WRONG:
        assert other.message.startswith(
            "stretched to N=65535 (holdout), inputs 'normal', forward program order: output"
        )


def test_sizes_at_which_the_seed_takes_too_long_are_asked_of_nobody(tmp_path: Path, monkeypatch) -> None:
    """Its own cases have all the time that there is."""
    load = "tl.load(x + i, mask=i < n)"
    turns = "v = " + load + "\n        for again in range(n):\n            v = v + 0 * again\n        "
    slow = RIGHT.replace("        tl.store(", f"        {turns}tl.store(").replace(load + " * 2", "v * 2")
    assert "v * 2" in slow and slow.count(load) == 1
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(slow)
    given: list[int] = []

    def noted(*args: Any, added_limits: Limits, **options: Any) -> Check:
        given.append(added_limits.cpu_s)
        return verify(*args, added_limits=added_limits, **options)

    monkeypatch.setattr("fitness.cpu_backend.verify", noted)
    monkeypatch.setattr("fitness.cpu_backend.ADDED_S", 2)
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        names = [case.name for case in evaluator._front_end._added]
        assert names == ["stretched to N=65535", "stretched in part to N=4095", "reduced to N=1"]
        assert "stretched to N=65535" not in [case.name for case in evaluator._backend._added]
        assert given == [2] * 5 and Limits().cpu_s > ADDED_S > 2
        assert evaluator.evaluate(Candidate(RIGHT), seed=1, known={}).verdict is Verdict.OK
        assert given[5:] == [Limits().cpu_s]  # others have all that there is


@pytest.mark.parametrize(("least", "verdict"), [(2, Verdict.OK), (101, Verdict.RUNTIME_ERROR)])
def test_who_raises_at_a_reduced_size_is_not_tried_on_it(tmp_path: Path, least: int, verdict: Verdict) -> None:
    """Other sizes must be done."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(RIGHT)
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        evaluator.prepare()
        careful = RIGHT.replace("    y = torch", f"    assert x.numel() >= {least}\n    y = torch")
        found = evaluator.evaluate(Candidate(careful), seed=1, known={})
    assert found.verdict is verdict, found.message
