"""The benchmark of the checker: mutants, witnesses, and the arithmetic of its tables."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from analysis.benchmarks import bench_checker, kernel_sets, mutants, peer_checks, witnesses
from analysis.benchmarks.bench_checker import (
    Folder,
    Tally,
    append,
    beside,
    figures,
    read,
    state,
    table,
    usable,
    wilson,
    witness_class,
)  # fmt: skip
from analysis.benchmarks.mutants import OPERATORS, PLAIN, RightKernel, Variant
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
KERNEL_OF = RightKernel("vector_sin", "seed", "built-in", KERNEL)
# A few kernels in which every operator finds a place.
SOME = (
    ("softmax", "own_scratch"), ("softmax", "online_scalar"), ("matmul", "persistent"), ("matmul", "split_k"),
    ("cross_entropy", "seed"), ("scatter", "row_blocks"), ("rotary", "seed"),
)  # fmt: skip


def lines(operator: str) -> list[str]:
    """The changed line of each mutant of KERNEL."""
    old = KERNEL.splitlines()
    return [
        next(new for new in v.source.splitlines() if new not in old).strip()
        for v in mutants.mutants(KERNEL_OF, operator)
    ]


def base(task: str, name: str) -> RightKernel:
    """A kernel of a built-in task."""
    return next(kernel for kernel in kernel_sets.built_in([task]) if kernel.name == name)


# --- mutants ---------------------------------------------------------------------------------------------------------


def test_every_operator_gives_mutants_that_are_python_and_differ():
    found = dict.fromkeys(OPERATORS, 0)
    for task, kernel in SOME:
        right = base(task, kernel)
        for name in OPERATORS:
            made = list(mutants.mutants(right, name))
            found[name] += len(made)
            assert len({v.source for v in made} | {right.source}) == len({v.id for v in made}) + 1 == len(made) + 1
            for variant in made:
                syntax.parse(variant.source)
    assert min(found.values()) > 0, found


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("bound-too-small", "x = tl.load(x_ptr + offsets, mask=offsets < (n) - 1, other=0.0)"),
        ("mask-dropped", "x = tl.load(x_ptr + offsets)"),
        ("mask-shifted", "x = tl.load(x_ptr + offsets, mask=((offsets) > 0) & ((offsets) <= (n)), other=0.0)"),
        ("value-ignored", "x = (tl.load(x_ptr + offsets, mask=offsets < n, other=0.0) * 0 + 0)"),
        ("neutral-element", "x = tl.load(x_ptr + offsets, mask=offsets < n, other=1.0)"),
        ("last-tile-lost", "kernel[(max(1, (x.numel()) // (16)),)](x, y, x.numel(), BLOCK=16)"),
        ("function-wrong", "tl.store(y_ptr + offsets, tl.cos(x), mask=offsets < n)"),
        ("wrong-program", "if tl.program_id(0) > 3:"),
    ],
)
def test_operators_change_what_they_say(operator, expected):
    assert lines(operator)[0] == expected


def test_a_place_is_the_line_of_the_change():
    first = next(mutants.mutants(KERNEL_OF, "mask-dropped"))
    assert first.place == "line 9: x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)"


def test_waiting_is_lost():
    found = [v.source for v in mutants.mutants(base("softmax", "own_scratch"), "synchronisation-lost")]
    assert len(found) == 1 and "tl.debug_barrier()" not in found[0]


# As TritonBench writes kernels: pointers in capitals, masks by position, a grid that is a function, axes by keyword.
OTHER_STYLE = """import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (32, 64)], key=["N"])
@triton.jit
def _fwd(X, Y, N, sm_scale, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0)
    X += row * N
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + cols, cols < N, 0.0)
    tl.store(Y + row * N + cols, x * sm_scale, cols < N)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        grid = lambda META: (triton.cdiv(x.shape[0], 1),)
        _fwd[grid](x, y, x.shape[1], 2.0)
        return y
"""


def test_other_styles_of_kernels_are_read_too():
    right = RightKernel("scale", "seed", "tritonbench-g", mutants.first_configuration(OTHER_STYLE))
    assert "configs=([triton.Config" in right.source and "for b in (32, 64)])[:1], key" in right.source
    kernel = mutants.Text(right.source).kernels[0]
    assert mutants.pointers(kernel) == {"X", "Y"} and mutants.sizes(kernel) == ["N"]
    (load, store) = mutants.mutants(right, "mask-dropped")
    assert "x = tl.load(X + cols)" in load.source and "tl.store(Y + row * N + cols, x * sm_scale)" in store.source
    assert "max(1, (x.shape[0]) // (1))" in next(mutants.mutants(right, "last-tile-lost")).source
    assert "min(triton.cdiv(x.shape[0], 1), 5)" in next(mutants.mutants(right, "grid-too-small")).source
    assert len(mutants.wrong_kernels([right], 20)) == 20


def test_the_same_seed_gives_the_same_kernels_and_another_one_others():
    kernels = kernel_sets.built_in(["vector_sin"])
    wrong = mutants.wrong_kernels(kernels, 12)
    assert wrong == mutants.wrong_kernels(kernels, 12)
    assert len({v.id for v in wrong}) == 12
    assert {v.id for v in wrong} != {v.id for v in mutants.wrong_kernels(kernels, 12, seed=1)}
    right = mutants.right_kernels(kernels, 4)
    assert right == mutants.right_kernels(kernels, 4)
    rewritten = [v for v in right if v.operator != PLAIN]
    assert len(rewritten) == 4 and len({v.id for v in right}) == len(right) == 4 + len(kernels)


def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match=r"expected built-in tasks .* got nothing"):
        kernel_sets.built_in(["softmax", "nothing"])


def test_a_third_of_the_kernels_is_kept_for_a_final_test_but_none_of_the_built_in_ones():
    names = [RightKernel(f"/tasks/level1_{i}", "seed", "kernelbench", "") for i in range(300)]
    kept = [kernel_sets.split_of(kernel) for kernel in names]
    assert kept == [kernel_sets.split_of(RightKernel(f"/other/level1_{i}", "seed", "x", "y")) for i in range(300)]
    assert 80 < kept.count("final") < 125 and kept.count("final") + kept.count("development") == 300
    assert {kernel_sets.split_of(kernel) for kernel in kernel_sets.built_in()} == {"development"}


def test_kernels_of_checkouts_become_tasks(tmp_path):
    checkout = tmp_path / "KernelBench"
    (checkout / "level1").mkdir(parents=True)
    problem = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

batch, width = 16, 100

def get_inputs():
    return [torch.rand(batch, width)]

def get_init_inputs():
    return []
"""
    (checkout / "level1" / "19_ReLU.py").write_text(problem)
    (checkout / "level1" / "21_Sigmoid.py").write_text(problem.replace("relu", "sigmoid"))
    (checkout / "level1" / "22_Nothing.py").write_text(problem)
    (found,) = kernel_sets.kernelbench(checkout, tmp_path / "tasks", print)  # one of the pattern of both
    assert Path(found.task).name in ("level1_19_ReLU", "level1_21_Sigmoid")
    assert kernel_sets.has_kernels(found) and found.group == "kernelbench"
    recorded = kernel_sets.answers(None, tmp_path, print)
    assert {kernel.group for kernel in recorded} == {"answers"} and len(recorded) >= 5


# --- witnesses -------------------------------------------------------------------------------------------------------


def test_wrong_kernels_are_witnessed_and_equivalent_ones_are_not():
    cross_entropy = base("cross_entropy", "seed")
    sources = {
        "itself": ("vector_sin", KERNEL),
        "equivalent": ("cross_entropy", next(mutants.mutants(cross_entropy, "wide-index-lost")).source),
        "lost tile": ("vector_sin", next(mutants.mutants(KERNEL_OF, "last-tile-lost")).source),
        "unmasked load": ("vector_sin", next(mutants.mutants(KERNEL_OF, "mask-dropped")).source),
        "far store": ("vector_sin", list(mutants.mutants(KERNEL_OF, "access-far-outside"))[1].source),
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
    for task in map(witnesses.load_task, witnesses._BETWEEN):
        known = [case.axes for place in ("cpu", "gpu") for case in witnesses.cases_at(task, place)]
        between = witnesses.cases_at(task, "elsewhere")
        assert between
        for case in between:
            assert set(case.axes) == set(known[0])
            for axis, size in case.axes.items():
                assert min(k[axis] for k in known) <= size <= max(k[axis] for k in known), (task.name, case)


SEED_TASK = """
from fitness import Case
import torch

entry = "vector_sin"
reference = "seed"
allow_delegation = True
cases = [Case("case", {"N": 100})]
stress = False


def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)
"""
# Host code asks for a GPU.
ON_GPU = KERNEL.replace(
    "    y = torch.empty_like(x)\n", "    assert x.is_cuda\n    y = torch.empty(x.shape, device='cuda')\n"
)
TESTS = """
def test():
    return {"one": vector_sin(torch.randn(100, device="cuda")), "two": [vector_sin(torch.ones(16).cuda())]}

result_gold = test()
"""


def test_a_seed_kernel_is_a_reference_and_other_benchmarks_have_their_rules(tmp_path):
    folder = tmp_path / "seeded"
    folder.mkdir()
    (folder / "task.py").write_text(SEED_TASK)
    (folder / "kernel.py").write_text(ON_GPU)
    kernel_sets.tests_of(folder).parent.mkdir()
    kernel_sets.tests_of(folder).write_text(TESTS)
    sources = {
        "itself": ON_GPU,
        "coarse": ON_GPU.replace("tl.sin(x)", "tl.sin(x) * 1.00003"),
        "odd size": ON_GPU.replace("tl.sin(x)", "tl.where(n == 100, tl.sin(x), 0.0)"),
        "wrong": ON_GPU.replace("tl.sin", "tl.cos"),
        "raises": ON_GPU.replace("tl.sin", "tl.sinus"),
    }
    jobs = [(n, str(folder), place, text) for n, text in sources.items() for place in ("cpu", *peer_checks.RULES)]
    found = {name: [] for name in sources}
    witnesses.observe(jobs, "interpret", 1, lambda answer: found[answer["id"]].append(answer["status"]))
    yes, no = "accepted", "refused"
    assert found == {
        "itself": ["right", yes, yes, yes],
        "coarse": ["wrong", yes, yes, yes],
        "odd size": ["right", yes, yes, no],
        "wrong": ["wrong", no, yes, no],  # nothing is printed, so nothing is compared
        "raises": ["invalid", no, no, no],
    }


def test_scripts_are_refused_for_what_they_print_and_how_they_end():
    scripts, kernel = peer_checks.TestScripts(), "def f():\n    return {}\n"
    scripts.check(kernel.format(1), kernel.format(1), "print(f())", values=False)
    scripts.check(kernel.format(1), kernel.format(2), "f()", values=False)
    for source, tests in ((kernel.format(2), "print(f())"), (kernel.format(1), "raise SystemExit(3 if f() else 0)")):
        with pytest.raises(peer_checks.RefusedByPeer):
            scripts.check(kernel.format(0 if "Exit" in tests else 1), source, tests, values=False)


@pytest.mark.parametrize(
    ("dtype", "error", "right"),
    [
        (torch.float32, 1.5e-4, True), (torch.float32, 3e-4, False),
        (torch.float16, 1.5e-2, True), (torch.float16, 3e-2, False), (torch.int32, 1, False),
    ],
)  # fmt: skip
def test_kernelbench_compares_by_the_dtype(dtype, error, right):
    one = torch.ones(4, dtype=dtype)
    if right:
        peer_checks.compare(one, (one + error).to(dtype))
    else:
        with pytest.raises(peer_checks.RefusedByPeer, match="differ"):
            peer_checks.compare(one, (one + error).to(dtype))
    for other in (one[:3], one.double(), [1.0] * 4):
        with pytest.raises(peer_checks.RefusedByPeer, match="expected"):
            peer_checks.compare(one, other)


def test_kernelbench_draws_five_times():
    drawn = []

    def draw(seed):
        drawn.append(seed)
        return (torch.tensor([float(seed % 5)]),)

    peer_checks.kernelbench(draw, lambda x: [x], lambda x: [x])
    assert len(drawn) == 10 and len(set(drawn)) == 5 and drawn[::2] == peer_checks.seeds()
    with pytest.raises(peer_checks.RefusedByPeer):
        peer_checks.kernelbench(draw, lambda x: [x], lambda x: [x, x])


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
        ({"cpu": "invalid", "gpu": "right"}, "right"),
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


def test_checks_stand_side_by_side_on_the_kernels_that_all_judged(tmp_path):
    folder = Folder(tmp_path)
    wrong = [Variant("/t/x", "seed", op, "", f"{op} = 1", "tritonbench-g") for op in ("a", "b", "c")]
    right = [Variant("/t/x", "seed", PLAIN, "", "d = 1", "tritonbench-g")]
    for v in (*wrong, *right):
        status = "right" if v.operator == PLAIN else "wrong"
        append(folder.witnesses("interpret"), {"id": v.id, "task": "x", "place": "cpu", "status": status})
        append(folder.verdicts("cpu", "x"), {"id": v.id, "verdict": "ok" if v.operator == PLAIN else "wrong"})
        if v.operator != "c":
            append(folder.verdicts("kernelbench-cpu"), {"id": v.id, "verdict": "wrong" if v.operator == "a" else "ok"})
    text = beside(folder, "interpret", wrong, right, bench_checker.CLASSES["cpu"])
    assert "| evo | 2/2 = 100.0% [34.2%, 100.0%] | 0/1 = 0.0%" in text
    assert "| KernelBench's rule | 1/2 = 50.0%" in text
    assert "| b | 1/1 = 100.0% [20.7%, 100.0%] | 0/1 = 0.0% [0.0%, 79.3%] |" in text and "| c |" not in text
    assert "TritonBench" not in text


def test_each_kernel_has_a_row_that_says_who_saw_and_said_what(tmp_path):
    folder = Folder(tmp_path)
    wrong = [Variant("/t/x", "seed", op, "", f"{op} = 1") for op in ("lost", "unseen")]
    right = [Variant("/t/x", "seed", PLAIN, "", "d = 1")]
    for v, status in ((wrong[0], "wrong"), (right[0], "right")):
        answer = {"id": v.id, "task": "x", "place": "elsewhere", "status": status, "variant": "heavy"}
        append(folder.witnesses("interpret"), answer)
    append(folder.verdicts("cpu", "x"), {"id": wrong[0].id, "verdict": "rejected", "stage": "estimate"})
    append(folder.verdicts("kernelbench-cpu"), {"id": wrong[0].id, "verdict": "ok"})
    bench_checker.write_csv(folder, "interpret", wrong, right)
    rows = [line.split(",") for line in (tmp_path / "cpu.csv").read_text().splitlines()]
    assert tuple(rows[0]) == bench_checker.COLUMNS
    same = ["built-in", "x", "seed"]
    assert rows[1:] == [
        ["wrong", wrong[0].id, *same, "lost", "wrong", "elsewhere", "heavy", "rejected", "estimate", "ok"],
        ["right", right[0].id, *same, PLAIN, "right", "", "", "", "", ""],
    ]


def test_mutants_of_a_kernel_that_is_not_seen_to_be_right_do_not_count(tmp_path):
    folder = Folder(tmp_path)
    plain = [Variant("/t/x", name, PLAIN, "", f"{name} = 0") for name in "ab"]
    wrong = [Variant("/t/x", name, "op", "", f"{name} = 1") for name in "ab"]
    for v, status in zip(plain, ("right", "unclear"), strict=True):
        append(folder.witnesses("interpret"), {"id": v.id, "task": "x", "place": "cpu", "status": status})
    assert usable(folder, wrong, plain) == (wrong[:1], plain[:1])


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
    bench_checker.find_witnesses(folder, [wrong, right], "cuda", 1)
    assert asked[3:] == [(right.id, "gpu")]  # wrong on one device is enough
    assert state(folder.all_witnesses()[wrong.id]) == "wrong"
    assert json.loads(folder.witnesses("interpret").read_text().splitlines()[0])["id"] == wrong.id
