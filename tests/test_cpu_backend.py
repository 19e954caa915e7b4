"""A candidate's way through all stages, on the real compiler, sandbox and interpreter.

What is asked of the evaluators of all built-in tasks is asked here: to prepare them takes 40 seconds of a core.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from evo.core.errors import EvoError
from evo.core.records import Candidate, Verdict, score
from evo.storage.queries import RunReader
from fitness import candidate as compiled
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.cpu_backend import CpuEvaluator
from fitness.evaluator import SeedError
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.tasks.task import load_task, task_names
from tests import gpu_sources as sources
from tests import test_hacks as hacks
from tests.test_reference_runs import WON
from tests.test_reference_runs import name as name_of_run

VARIANTS = sorted((Path(__file__).parent / "variants").glob("*.py"))


@pytest.mark.parametrize("name", task_names())
def test_every_seed_is_ok_and_its_own_baseline(evaluators, of_seeds, name):
    evaluator = evaluators(name)
    evaluation = of_seeds[name]
    assert evaluation.verdict is Verdict.OK, evaluation.message
    fitness = score(evaluation)
    assert fitness is not None and fitness.estimated
    assert fitness.speedup == pytest.approx(1.0)
    assert {t.case for t in evaluation.timings} == {c.name for c in evaluator.task.cases if c.role == "tune"}


@pytest.mark.parametrize("path", VARIANTS, ids=lambda p: p.stem)
def test_every_right_variant_is_ok(evaluators, path):
    evaluator = evaluators(path.stem.split("__")[0])
    evaluation = evaluator.evaluate(Candidate(path.read_text(encoding="utf-8")), seed=7, known={})
    assert evaluation.verdict is Verdict.OK, f"{evaluation.stage}: {evaluation.message}"


CHEATS = [path for path in hacks.CORPUS if hacks.header(path)["task"] in hacks.ELSEWHERE]


@pytest.mark.parametrize("path", CHEATS, ids=lambda p: p.stem)
def test_each_cheat_of_these_tasks_gets_its_verdict(evaluators, path):
    """Those of the other tasks: test_hacks.py."""
    hacks.assert_verdict(evaluators, path)


# Axes that are reduced to 1.
ONE = {
    "attention": "", "cross_entropy": "M", "gemv_batched": "BMK", "int8_matmul": "MNK", "layer_norm": "MN",
    "matmul": "MK", "matmul_backward": "MNK", "rms_norm": "MN", "rotary": "SH", "scatter": "RN", "softmax": "MN",
    "vector_sin": "N",
}  # fmt: skip


@pytest.mark.parametrize("name", task_names())
def test_every_built_in_seed_is_right_at_stretched_sizes(evaluators, name: str) -> None:
    evaluator = evaluators(name)
    found = evaluator._backend._added
    assert list(found) == list(evaluator._front_end._added)
    long = {case.name for case in found if not case.name.startswith("reduced to ")}
    assert long
    assert {case.name for case in found} - long == {f"reduced to {axis}=1" for axis in ONE[name]}


@pytest.mark.parametrize("name", task_names())
def test_all_cases_of_the_built_in_tasks_are_sampled(evaluators, name: str) -> None:
    assert evaluators(name)._backend._sampled.left_out == {}


@pytest.mark.parametrize("path", WON, ids=name_of_run)
def test_the_winner_of_a_committed_run_is_right_without_a_gpu_too(evaluators, path: Path) -> None:
    with RunReader(path.parent) as run:
        best, task = run.best(), run.info.config.task
    assert best is not None and best.index > 0
    source = (path.parent / "best_kernel.py").read_text()
    assert best.evaluation is not None
    assert source == (best.evaluation.frozen_source or best.proposal.candidate.source)
    evaluation = evaluators(task).evaluate(Candidate(source), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message


LOCKED = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, lock, o, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    c = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(o + row + c, tl.load(x + row + c, mask=c < n) * 2, mask=c < n)
    tl.atomic_xchg(lock, 0)

def doubled(x, lock):
    o = torch.empty_like(x)
    kernel[(x.shape[0],)](x, lock, o, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return o
"""
LOCKED_TASK = """import torch
from fitness import Case

entry = "doubled"
cases = [Case("one", {"M": 64, "N": 512}, cpu_axes={"M": 4, "N": 40})]

def inputs(case, generator):
    x = torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device)
    return x, torch.zeros(1, dtype=torch.int32, device=generator.device)

def reference(x, lock):
    return x * 2
"""


def test_host_code_that_needs_a_value_of_the_device_is_unsupported_and_says_what_to_do(evaluators):
    """Beside it, the same kernel without that value."""
    source = (Path(__file__).parent / "hacks" / "value_item.py").read_text(encoding="utf-8")
    right = source.replace("return y if y[0, 0].item() >= 0.0 else launch(y)", "return y")
    assert right != source
    found = evaluators("softmax").evaluate(Candidate(source), seed=7, known={})
    assert (found.verdict, found.stage) == (Verdict.UNSUPPORTED, "record")
    assert "host code needs a value computed on the device" in found.message
    assert "decide in the kernel, or from shapes and dtypes" in found.message
    found = evaluators("softmax").evaluate(Candidate(right), seed=7, known={})
    assert found.verdict is Verdict.OK, found.message


def test_what_the_seed_stores_to_others_may_leave_as_it_was_too(tmp_path):
    (tmp_path / "task.py").write_text(LOCKED_TASK)
    (tmp_path / "kernel.py").write_text(LOCKED)
    with closing(CpuEvaluator(load_task(tmp_path), get_target("sm_90"))) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        warps = LOCKED.replace("x.shape[1]))", "x.shape[1]), num_warps=1)")
        stores = warps.replace("    tl.atomic_xchg", "    tl.store(x + row, tl.load(x + row))\n    tl.atomic_xchg")
        right, wrong = (evaluator.evaluate(Candidate(source), seed=1, known={}) for source in (warps, stores))
    assert right.verdict is Verdict.OK, right.message
    assert wrong.verdict is Verdict.WRONG and "stored to input 'x'" in wrong.message


def test_the_same_work_under_another_name_is_a_duplicate(evaluators):
    evaluator = evaluators("softmax")
    seed = evaluator.task.seed_source
    first = evaluator.evaluate(Candidate(seed), seed=1, known={})
    renamed = Candidate("UNUSED = 1\n" + seed)
    assert renamed.id != first.candidate
    again = evaluator.evaluate(renamed, seed=1, known={first.plan_hash: first.candidate})
    assert again.verdict is Verdict.DUPLICATE
    assert again.duplicate_of == first.candidate


def test_who_differs_in_holdout_cases_alone_does_the_same_work(tmp_path):
    """Those that a GPU judges are compiled for holdout cases too."""
    by_size = sources.RIGHT["one pass"].replace("num_warps=8", "num_warps=8 if x.shape[1] != 1003 else 4")
    assert "else 4" in by_size
    (tmp_path / "task.py").write_text(sources.TASK)
    (tmp_path / "kernel.py").write_text(sources.SEED)
    with closing(FrontEnd(load_task(tmp_path), get_target("sm_90"), measured=True)) as front_end:
        first, holdout, tuned = (
            whole(front_end, by_size.replace("8 if x.shape[1] != 1003 else 4", warps))
            for warps in ("8 if x.shape[1] != 1003 else 4", "8 if x.shape[1] != 1003 else 2", "4")
        )
    assert "odd" in first.builds and first.builds["odd"] != holdout.builds["odd"]
    assert first.plan_hash == holdout.plan_hash != tuned.plan_hash


def whole(front_end: FrontEnd, source: str) -> CompiledCandidate:
    return front_end.complete(source, front_end.collect(source))


CHOOSY = """import torch
import triton
import triton.language as tl

@triton.autotune([triton.Config({"STEP": step}, num_warps=8) for step in (1, 2, 4)], key=["n"])
@triton.jit
def kernel(x, o, n, N: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr):
    tl.static_assert(N % 2 == 0 or STEP != 2)
    row = tl.program_id(0).to(tl.int64) * n
    c = tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row + c, mask=mask, other=0.0)
    tl.store(o + row + c, v * 2 * STEP / STEP + tl.sum(v, 0), mask=mask)

def shifted(x):
    o = torch.empty_like(x)
    kernel[(x.shape[0],)](x, o, x.shape[1], x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return o
"""


def test_what_is_not_timed_is_compiled_last_and_for_no_duplicate(tmp_path):
    (tmp_path / "task.py").write_text(sources.TASK)
    (tmp_path / "kernel.py").write_text(sources.SEED)
    with closing(FrontEnd(load_task(tmp_path), get_target("sm_90"), measured=True)) as front_end:
        timed = front_end.collect(CHOOSY)
        assert set(timed.builds) == {"small", "large"} and timed.unbuilt == ("odd",) and not timed.left_out
        assert [len(by_config) for by_config in timed.builds["small"]] == [3]
        found = front_end.complete(CHOOSY, timed)
        assert front_end.complete(CHOOSY, found) is found
    # What cannot be compiled for the odd size takes no part at any.
    assert set(found.builds) == set(found.plans) == {"small", "large", "odd"} and not found.unbuilt
    assert len(found.left_out) == 1 and "STEP: 2" in found.left_out[0]
    for name, plan in found.plans.items():
        assert [config.args["STEP"] for launch in plan.launches for config in launch.configs] == [1, 4]
        assert [len(by_config) for by_config in found.builds[name]] == [2]
    assert [b["key"] for b in found.builds["small"][0]] == [timed.builds["small"][0][i]["key"] for i in (0, 2)]
    assert all(found.cubins[b["cubin"]] for case in found.builds.values() for by in case for b in by)
    assert len(set(found.cubins.values())) == len(found.cubins)  # those of the odd size have names of their own
    # `timed` is as it was, for those who were given it.
    assert timed.unbuilt == ("odd",) and set(timed.builds) == {"small", "large"} and found.plan_hash == timed.plan_hash


def test_without_a_gpu_holdout_cases_are_compiled_too_and_choices_are_among_what_is_left(tmp_path):
    """One configuration multiplies blocks at the odd size that are larger than the memory shared by a program."""
    product = """K: tl.constexpr = 16 if N % 2 == 0 or STEP != 2 else 2048
    i, k = tl.arange(0, 64), tl.arange(0, K)
    a = tl.load(x + i[:, None] + (k % 16)[None, :]).to(tl.float16)
    nothing = 0 * tl.sum(tl.dot(a, tl.trans(a)))"""
    source = CHOOSY.replace("tl.static_assert(N % 2 == 0 or STEP != 2)", product).replace(
        "v * 2 *", "nothing + v * 2 *"
    )
    (tmp_path / "task.py").write_text(sources.TASK.partition("def bytes")[0])  # times do not matter
    (tmp_path / "kernel.py").write_text(sources.SEED)
    with closing(FrontEnd(load_task(tmp_path), get_target("sm_90"), measured=False)) as front_end:
        timed = front_end.collect(source)
        assert set(timed.builds) == {"small", "large"} and timed.unbuilt == ("odd",) and timed.estimates
        found = front_end.complete(source, timed)
    assert set(found.builds) == {"small", "large", "odd"} and len(found.left_out) == 1
    for name, plan in found.plans.items():
        [launch] = plan.launches
        assert [config.args["STEP"] for config in launch.configs] == [1, 4]
        assert found.choices[name][0] < 2
    assert set(found.estimates) == {"small", "large"} and found.estimates is not timed.estimates


PRUNED = """
import torch
import triton
import triton.language as tl


def fitting(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] == SIZE]


@triton.autotune(
    configs=[triton.Config({"BLOCK": 1 << k}) for k in range(6, 15)],
    key=["n_cols"],
    prune_configs_by={"early_config_prune": fitting},
)
@triton.jit
def kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + columns, mask=columns < n_cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + tl.program_id(0) * n_cols + columns, e / tl.sum(e, axis=0), mask=columns < n_cols)


def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, y, x.shape[1])
    return y
"""


@pytest.mark.parametrize(("size", "frozen"), [('triton.next_power_of_2(named_args["n_cols"])', False), ("16384", True)])
def test_a_kernel_with_another_configuration_for_each_size_is_not_frozen(evaluators, size, frozen):
    evaluation = evaluators("softmax").evaluate(Candidate(PRUNED.replace("SIZE", size)), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert bool(evaluation.frozen_source) == frozen


LAST_ARRIVES = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, count_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if tl.atomic_add(count_ptr + row, 1) == tl.num_programs(1) - 1:
        columns = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + columns, mask=columns < n_cols, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * n_cols + columns, e / tl.sum(e, axis=0), mask=columns < n_cols)


def softmax(x):
    y = torch.empty_like(x)
    count = torch.zeros(x.shape[0], dtype=torch.int32, device=x.device)
    kernel[(x.shape[0], 2)](x, y, count, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""


def test_work_that_waits_for_an_atomic_cannot_be_estimated_but_is_not_called_wrong(evaluators):
    evaluation = evaluators("softmax").evaluate(Candidate(LAST_ARRIVES), seed=1, known={})
    assert (evaluation.verdict, evaluation.stage) == (Verdict.UNSUPPORTED, "estimate")
    assert "measure it on a GPU" in evaluation.message


def test_the_same_seed_gives_the_same_facts(evaluators):
    evaluator = evaluators("softmax")
    candidate = Candidate(evaluator.task.seed_source)
    one, two = (evaluator.evaluate(candidate, seed=3, known={}) for _ in range(2))
    assert (one.check, one.timings, one.plan_hash) == (two.check, two.timings, two.plan_hash)


def test_screening_agrees_with_evaluation(evaluators):
    evaluator = evaluators("softmax")
    source = (VARIANTS[0].parent / "softmax__online.py").read_text(encoding="utf-8")
    screened = evaluator.screen([source, "this is not Python"])
    assert screened[1] is None
    assert screened[0] == pytest.approx(score(evaluator.evaluate(Candidate(source), seed=1, known={})).speedup)


def test_an_autotuned_kernel_comes_back_frozen(evaluators):
    evaluator = evaluators("softmax")
    source = (VARIANTS[0].parent / "softmax__autotuned.py").read_text(encoding="utf-8")
    evaluation = evaluator.evaluate(Candidate(source), seed=1, known={})
    assert evaluation.frozen_source.count("triton.Config(") == 1
    frozen = evaluator.evaluate(Candidate(evaluation.frozen_source), seed=1, known={})
    assert frozen.verdict is Verdict.OK
    assert [t.ratio for t in frozen.timings] == pytest.approx([t.ratio for t in evaluation.timings])


def test_a_configuration_that_does_not_compile_is_left_to_the_others(evaluators):
    evaluator = evaluators("softmax")
    source = (VARIANTS[0].parent / "softmax__autotuned.py").read_text(encoding="utf-8")
    head = "BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):\n"
    picky = source.replace(head, head + "    tl.static_assert(BLOCK_N < CONDITION)\n")
    assert picky != source
    all_of_them = evaluator.evaluate(Candidate(source), seed=1, known={})
    evaluation = evaluator.evaluate(Candidate(picky.replace("CONDITION", "256")), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert [text.split(",")[:2] for text in evaluation.environment["left_out"]] == [["BLOCK_M: 2", " BLOCK_N: 256"]]
    assert "left_out" not in all_of_them.environment
    # As if it had never been in the list.
    last = '        triton.Config({"BLOCK_M": 2, "BLOCK_N": 256}, num_warps=8),\n'
    shorter = evaluator.evaluate(Candidate(source.replace(last, "")), seed=1, known={})
    assert source.count(last) == 1 and evaluation.plan_hash == shorter.plan_hash != all_of_them.plan_hash
    assert [t.ratio for t in evaluation.timings] == [t.ratio for t in shorter.timings]
    frozen = evaluator.evaluate(Candidate(evaluation.frozen_source), seed=1, known={})
    assert frozen.verdict is Verdict.OK and "left_out" not in frozen.environment
    assert evaluation.frozen_source.count("triton.Config(") == 1 and "256}" not in evaluation.frozen_source
    none = evaluator.evaluate(Candidate(picky.replace("CONDITION", "64")), seed=1, known={})
    line = picky[: picky.index("tl.static_assert")].count("\n") + 1
    assert (none.verdict, none.stage, none.findings[0].line) == (Verdict.COMPILE_ERROR, "compile", line)
    assert none.message.startswith(f"line {line}: kernel tuned_kernel: ")


def test_what_compiling_may_take_is_measured_by_the_seed(evaluators, monkeypatch):
    """Also where another recorder has seen it."""
    monkeypatch.setattr(compiled, "BUILD_S", 0.1)  # at least a second, in whole ones
    seed = evaluators("softmax").task.seed_source
    unrolled = seed.replace("BLOCK_SIZE=128, num_warps=8", "BLOCK_SIZE=65536, num_warps=1")
    with CpuEvaluator(load_task("softmax"), get_target("sm_90")) as evaluator:
        slow = evaluator.evaluate(Candidate(unrolled), seed=1, known={})
        assert (slow.stage, slow.verdict) == ("compile", Verdict.TIMEOUT)
        # Whichever is at work when the time is over: Triton or ptxas.
        ended = r"(used all its CPU time, \d+ s at most|kernel softmax_kernel: ptxas used all the CPU time .*)"
        said = rf"compiling {ended}; the slowest build of the seed took \d+\.\d s: are its blocks"
        assert re.match(said, slow.message), slow.message
        assert evaluator.prepare().verdict is Verdict.OK


def test_a_fault_ends_the_evaluation_of_one_candidate_alone(evaluators, monkeypatch):
    """And is not what is known of it: another time it may go well."""
    evaluator = evaluators("softmax")
    candidate = Candidate("UNUSED = 3\n" + evaluator.task.seed_source)  # which nothing is known of

    def fail(*args):
        raise RecursionError("too deep")

    with monkeypatch.context() as patched:
        patched.setattr(evaluator._front_end, "collect", fail)
        found = evaluator.evaluate(candidate, seed=1, known={})
        assert (found.verdict, found.stage) == (Verdict.INFRASTRUCTURE, "record")
        assert re.fullmatch(r"RecursionError: too deep \(raised in test_cpu_backend\.py, line \d+\)", found.message)
        assert evaluator.plan_hash(candidate.source) == ""
        assert evaluator.screen([candidate.source]) == [None]
    with monkeypatch.context() as patched:
        patched.setattr(evaluator._backend, "evaluate", fail)
        found = evaluator.evaluate(candidate, seed=1, known={})
        assert (found.verdict, found.stage) == (Verdict.INFRASTRUCTURE, "verify")
    assert evaluator.evaluate(candidate, seed=1, known={}).verdict is Verdict.OK


@pytest.mark.parametrize("part", ["_front_end.collect", "_backend.prepare"])
def test_a_full_disk_is_no_fault_of_the_seed(monkeypatch, part):
    with CpuEvaluator(load_task("softmax"), get_target("sm_90")) as evaluator:

        def full(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        owner, name = part.split(".")
        monkeypatch.setattr(getattr(evaluator, owner), name, full)
        with pytest.raises(EvoError, match=f"room for scratch files in {tempfile.gettempdir()}, got: .*set TMPDIR"):
            evaluator.prepare()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, EvoError])
def test_what_is_to_end_a_run_ends_it(evaluators, monkeypatch, error):
    evaluator = evaluators("softmax")

    def stop(source):
        raise error

    monkeypatch.setattr(evaluator._front_end, "collect", stop)
    with pytest.raises(error):
        evaluator.evaluate(Candidate("UNUSED = 2\n" + evaluator.task.seed_source), seed=1, known={})


def test_the_active_layers_of_the_sandbox_are_told(evaluators):
    evaluator = evaluators("softmax")
    evaluation = evaluator.evaluate(Candidate(evaluator.task.seed_source), seed=1, known={})
    assert "rlimits" in evaluation.environment["sandbox"]


def test_a_seed_is_not_blamed_for_the_machine(monkeypatch):
    with CpuEvaluator(load_task("softmax"), get_target("sm_90")) as evaluator:
        fault = Stop("verify", Verdict.INFRASTRUCTURE, "another process has kept the GPU")
        monkeypatch.setattr(evaluator, "_compiled_baseline", lambda: fault)
        with pytest.raises(
            EvoError, match="on this machine, got: another process has kept the GPU; try again"
        ) as raised:
            evaluator.prepare()
    assert not isinstance(raised.value, SeedError)


def test_a_task_with_a_wrong_seed_is_refused(tmp_path):
    built_in = load_task("softmax")
    (tmp_path / "task.py").write_text((built_in.folder / "task.py").read_text(encoding="utf-8"), encoding="utf-8")
    wrong = built_in.seed_source.replace("tl.exp(", "tl.exp2(")
    assert wrong != built_in.seed_source
    (tmp_path / "kernel.py").write_text(wrong, encoding="utf-8")
    with (
        CpuEvaluator(load_task(str(tmp_path)), get_target("sm_90")) as evaluator,
        pytest.raises(SeedError, match="verify") as raised,
    ):
        evaluator.prepare()
    copied = pickle.loads(pickle.dumps(raised.value))  # as another process gets it
    assert (str(copied), copied.verdict) == (str(raised.value), Verdict.WRONG)
