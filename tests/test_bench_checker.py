"""The benchmark of the checker: mutants, witnesses, and the arithmetic of its tables."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from analysis.benchmarks import bench_checker, mutants, witnesses
from analysis.benchmarks.bench_checker import Folder, Tally, append, figures, read, state, table, wilson, witness_class
from analysis.benchmarks.mutants import OPERATORS, Variant, bases
from evo.core import syntax
from fitness.verify.oracle import ErrorBudget, Expected

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(y_ptr + offsets, tl.sin(x), mask=offsets < n)


def vector_sin(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
    return y
"""
# A few kernels in which every operator finds a place.
SOME = (
    ("softmax", "online_scalar"), ("matmul", "persistent"), ("matmul", "split_k"), ("cross_entropy", "seed"),
    ("scatter", "row_blocks"), ("rotary", "seed"),
)  # fmt: skip


def lines(operator: str) -> list[str]:
    """The changed line of each mutant of KERNEL."""
    old = KERNEL.splitlines()
    return [
        next(new for new in v.source.splitlines() if new not in old).strip() for v in mutants.mutants(KERNEL, operator)
    ]


# --- mutants ---------------------------------------------------------------------------------------------------------


def test_every_operator_gives_mutants_that_are_python_and_differ():
    found = dict.fromkeys(OPERATORS, 0)
    for task, kernel in SOME:
        source = bases(task)[kernel]
        for name in OPERATORS:
            made = list(mutants.mutants(source, name, task=task, kernel=kernel))
            found[name] += len(made)
            assert len({v.id for v in made} | {mutants.candidate_id(source)}) == len(made) + 1
            for variant in made:
                syntax.parse(variant.source)
    assert min(found.values()) > 0, found


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("bound-too-small", "x = tl.load(x_ptr + offsets, mask=offsets < (n) - 1, other=0.0)"),
        ("mask-dropped", "x = tl.load(x_ptr + offsets)"),
        ("neutral-element", "x = tl.load(x_ptr + offsets, mask=offsets < n, other=1.0)"),
        ("last-tile-lost", "kernel[(max(1, (x.numel()) // (16)),)](x, y, x.numel(), BLOCK=16)"),
        ("function-wrong", "tl.store(y_ptr + offsets, tl.cos(x), mask=offsets < n)"),
        ("wrong-program", "if tl.program_id(0) > 3:"),
    ],
)
def test_operators_change_what_they_say(operator, expected):
    assert lines(operator)[0] == expected


def test_a_place_is_the_line_of_the_change():
    first = next(mutants.mutants(KERNEL, "mask-dropped"))
    assert first.place == "line 9: x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)"


def test_the_same_seed_gives_the_same_kernels_and_another_one_others():
    wrong = mutants.wrong_kernels("vector_sin", 12)
    assert wrong == mutants.wrong_kernels("vector_sin", 12)
    assert len({v.id for v in wrong}) == 12
    assert {v.id for v in wrong} != {v.id for v in mutants.wrong_kernels("vector_sin", 12, seed=1)}
    right = mutants.right_kernels("vector_sin", 4)
    assert right == mutants.right_kernels("vector_sin", 4)
    rewritten = [v for v in right if v.operator != "none"]
    assert len(rewritten) == 4 and len({v.id for v in right}) == len(right) == 4 + len(bases("vector_sin"))


def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match=r"expected built-in tasks .* got nothing"):
        mutants.tasks(["softmax", "nothing"])


# --- witnesses -------------------------------------------------------------------------------------------------------


def test_wrong_kernels_are_witnessed_and_equivalent_ones_are_not():
    cross_entropy = bases("cross_entropy")["seed"]
    sources = {
        "itself": ("vector_sin", KERNEL),
        "equivalent": ("cross_entropy", next(mutants.mutants(cross_entropy, "wide-index-lost")).source),
        "lost tile": ("vector_sin", next(mutants.mutants(KERNEL, "last-tile-lost")).source),
        "unmasked load": ("vector_sin", next(mutants.mutants(KERNEL, "mask-dropped")).source),
        "far store": ("vector_sin", list(mutants.mutants(KERNEL, "access-far-outside"))[1].source),
        "unknown name": ("vector_sin", KERNEL.replace("tl.sin", "tl.sinus")),
    }
    found = {}
    jobs = [(name, task, "cpu", source) for name, (task, source) in sources.items()]
    witnesses.observe(jobs, "interpret", 1, lambda answer: found.update({answer["id"]: answer}))
    assert {name: answer["status"] for name, answer in found.items()} == {
        "itself": "right",
        "equivalent": "right",
        "lost tile": "wrong",
        "unmasked load": "outside-read",
        "far store": "outside-write",
        "unknown name": "invalid",
    }
    lost = found["lost tile"]
    assert lost["axes"] == {"N": 131} and lost["variant"] == "normal" and lost["error"] == "inf"
    assert found["itself"]["error"] < 1


def test_sizes_in_between_are_within_those_of_the_cases():
    for task in map(witnesses.load_task, mutants.tasks()):
        known = [case.axes for place in ("cpu", "gpu") for case in witnesses.cases_at(task, place)]
        between = witnesses.cases_at(task, "elsewhere")
        assert between
        for case in between:
            assert set(case.axes) == set(known[0])
            for axis, size in case.axes.items():
                assert min(k[axis] for k in known) <= size <= max(k[axis] for k in known), (task.name, case)


@pytest.mark.parametrize(
    ("code", "hard_s", "status"),
    [
        ("import time; time.sleep(600)", 0.1, "unfinished"),
        ("input()", 60, "crash"),
        ("""print(input() and '{"status": "right"}')""", 60, "right"),
    ],
)
def test_a_process_that_dies_or_hangs_is_an_answer_too(tmp_path, code, hard_s, status):
    process = witnesses.Process("interpret", tmp_path)
    process._command = [sys.executable, "-c", code]
    try:
        assert process.ask(("id", "task", "cpu", ""), hard_s)["status"] == status
    finally:
        process.close()


@pytest.mark.parametrize("broken", [False, True])
def test_a_process_that_a_kernel_broke_answers_nothing_more(tmp_path, broken):
    process = witnesses.Process("interpret", tmp_path)
    answers = (
        f"while input(): print(json.dumps({{'status': 'crash', 'broken': {broken}, 'pid': os.getpid()}}), flush=True)"
    )
    process._command = [sys.executable, "-c", f"import json, os\n{answers}"]
    try:
        first, second = (process.ask(("id", "task", "cpu", ""))["pid"] for _ in range(2))
    finally:
        process.close()
    assert (first != second) == broken


def test_errors_count_in_units_of_the_budget():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = Expected("tensor", (exact,), (torch.float32,), ((1,),), (ErrorBudget(rms=0.1, max=0.2),))
    assert witnesses.error_of(expected, [torch.tensor([1.0, 2.0])]) == 0
    assert witnesses.error_of(expected, [torch.tensor([2.0, 2.0])]) == pytest.approx(math.sqrt(0.5) / 0.1)
    assert witnesses.error_of(expected, [torch.tensor([1.0, math.nan])]) == math.inf
    assert witnesses.error_of(expected, [torch.tensor([1.0, 2.0], dtype=torch.float64)]) == math.inf
    assert witnesses.error_of(expected, []) == math.inf


# --- tables ----------------------------------------------------------------------------------------------------------


def answer(place: str, status: str) -> dict[str, object]:
    return {"place": place, "status": status, "error": 9.0, "axes": {"N": 3}, "variant": "normal"}


def seen(**statuses: str) -> dict[str, dict[str, object]]:
    return {place: answer(place, status) for place, status in statuses.items()}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({"cpu": "right", "elsewhere": "wrong"}, "wrong"),
        ({"cpu": "crash"}, "wrong"),
        ({"cpu": "wrong", "gpu": "invalid"}, "invalid"),
        ({"cpu": "invalid"}, "invalid"),
        ({"cpu": "invalid", "gpu": "wrong"}, "wrong"),
        ({"cpu": "unclear", "gpu": "right"}, "unclear"),
        ({"cpu": "right", "gpu": "unfinished"}, "unfinished"),
        ({"cpu": "outside-read", "gpu": "right"}, "outside"),
        ({"cpu": "right", "gpu": "right"}, "right"),
        ({}, "unfinished"),
    ],
)
def test_what_is_known_of_a_kernel_from_all_places(statuses, expected):
    assert state(seen(**statuses)) == expected


def test_the_class_is_the_first_place_that_shows_the_fault():
    found = seen(cpu="right", gpu="wrong", elsewhere="wrong")
    assert witness_class(found, ("cpu", "gpu", "elsewhere")) == "gpu"
    assert witness_class(found, ("elsewhere", "cpu", "gpu")) == "elsewhere"
    assert witness_class(seen(cpu="right"), ("cpu", "gpu", "elsewhere")) == ""


def test_wilson_intervals():
    assert wilson(2, 4) == pytest.approx((0.15, 0.85), abs=0.005)
    assert wilson(0, 0) == (0.0, 1.0)


def test_verdicts_are_counted_by_what_they_say_about_the_checker():
    tally = Tally()
    for verdict in ("wrong", "timeout", "unsupported", "ok", "compile_error", "infrastructure", "not asked"):
        tally.add(verdict)
    assert (tally.refused, tally.accepted, tally.not_compiled, tally.not_judged) == (3, 1, 1, 2)
    assert tally.row("all").startswith("| all | 3/4 = 75.0% [30.1%, 95.4%] | 1 | 2 |")


def test_the_report_names_survivors_and_refused_right_kernels():
    def variant(name: str, operator: str) -> Variant:
        return Variant("softmax", "seed", operator, "line 1: x", f"{name} = 1\n")

    killed, survivor, equal = variant("a", "mask-dropped"), variant("b", "mask-dropped"), variant("c", "reset-lost")
    good, refused, doubtful = (variant(name, "exp2") for name in "def")
    statuses = {
        killed.id: seen(cpu="wrong"),
        survivor.id: seen(cpu="right", elsewhere="wrong"),
        equal.id: seen(cpu="right"),
        good.id: seen(cpu="right"),
        refused.id: seen(cpu="right"),
        doubtful.id: seen(cpu="wrong"),
    }
    verdicts = {
        killed.id: {"verdict": "wrong"},
        survivor.id: {"verdict": "ok"},
        good.id: {"verdict": "ok"},
        refused.id: {"verdict": "unsupported", "stage": "record", "message": "why"},
    }
    order = bench_checker.CLASSES["cpu"]
    found = figures([killed, survivor, equal], [good, refused, doubtful], statuses, verdicts, order)
    assert found.states == {"wrong": 2, "right": 1}
    assert (found.whole.refused, found.whole.accepted) == (1, 1)
    assert found.by_class["cpu"].refused == 1 and found.by_class["elsewhere"].accepted == 1
    assert found.right == {"ok": 1, "unsupported": 1}
    text = table("cpu", found)
    assert f"- elsewhere: {survivor.id} softmax/seed mask-dropped, line 1: x; wrong at N=3" in text
    assert f"- refused: {refused.id} softmax/seed exp2: unsupported at record: why" in text
    assert f"- not seen to be right: {doubtful.id} softmax/seed exp2: wrong" in text
    assert "accepted 1/2 = 50.0%" in text


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_is_not_read_and_harms_no_other(tmp_path):
    path = tmp_path / "lines.jsonl"
    append(path, {"id": "a"})
    with open(path, "a") as file:
        file.write('{"id": "b')
    append(path, {"id": "c"})
    assert [line["id"] for line in read(path)] == ["a", "c"]


def test_what_was_executed_is_not_executed_again(tmp_path, monkeypatch):
    asked: list[tuple[str, str]] = []

    def observe(jobs, device, processes, tell):
        for id, task, place, _ in jobs:
            asked.append((id, place))
            tell({"id": id, "task": task, "place": place, "status": "wrong" if id == wrong.id else "right"})

    monkeypatch.setattr(bench_checker, "observe", observe)
    folder = Folder(Path(tmp_path))
    wrong, right = (Variant("softmax", "seed", "none", "", f"{name} = 1\n") for name in "ab")
    bench_checker.find_witnesses(folder, [wrong, right], "interpret", 1)
    assert asked == [(wrong.id, "cpu"), (right.id, "cpu"), (right.id, "elsewhere")]  # wrong at one place is enough
    bench_checker.find_witnesses(folder, [wrong, right], "interpret", 1)
    assert len(asked) == 3
    assert state(folder.all_witnesses()[wrong.id]) == "wrong"
    assert json.loads(folder.witnesses("interpret").read_text().splitlines()[0])["id"] == wrong.id
