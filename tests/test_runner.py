"""The runner: what cannot be shown without a GPU is skipped there."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evo.core.errors import EvoError
from evo.core.records import Verdict
from fitness.frontend.plan import Buffer
from fitness.gpu import runner as module
from fitness.gpu.runner import BESIDE_S, MOST_SAID, LaunchBundle, Report, Runner, last_error
from tests import gpu_sources as sources
from tests.gpu_lab import Lab

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def test_a_candidate_needs_a_baseline():
    with Runner("softmax") as runner, pytest.raises(EvoError, match=r"prepare\(\)"):
        runner.evaluate(LaunchBundle({}, {}, {}), seed="0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_what_is_missing():
    with Runner("softmax") as runner, pytest.raises(EvoError, match="did not start"):
        runner.prepare(LaunchBundle({}, {}, {}))


@pytest.mark.parametrize(
    ("wrote", "begins"),
    [
        (
            f"Traceback:\n  File 'x'\ntorch.OutOfMemoryError: CUDA out of memory. {'Process 12 has 2.86 GiB. ' * 200}",
            "torch.O",
        ),
        (
            "ValueError: first\nDuring handling\ntorch.AcceleratorError: CUDA error: out of memory\nSearch for it\n",
            "torch.A",
        ),
        (f"{'noise ' * 200}terminate called\n", ""),
        ("", ""),
    ],
    ids=["long", "several lines", "no error", "nothing"],
)
def test_the_last_error_of_a_process_is_told_from_its_beginning(wrote, begins):
    said = last_error(wrote)
    assert said.startswith(begins) and len(said) <= MOST_SAID
    assert "out of memory" in said or "memory" not in wrote
    assert said.endswith("terminate called") or "terminate" not in wrote


OK = Report(Verdict.OK, "done")


@pytest.mark.parametrize(
    ("fault", "tries"), [(Verdict.TIMEOUT, 1), (Verdict.RUNTIME_ERROR, 2)], ids=["hangs", "breaks the context"]
)
def test_a_candidate_that_hangs_is_not_tried_again_and_how_long_depends_on_the_seed(monkeypatch, fault, tries):
    runner, asked = Runner("softmax", wall_s=120.0), []

    def timed(kind, *request, wall_s):
        asked.append((kind, wall_s))
        if kind == "prepare":
            return dataclasses.replace(OK, seconds=of_seed)
        return Report(fault, "verify", "it said so", fault=True, seconds=wall_s)

    monkeypatch.setattr(runner, "_timed", timed)
    for of_seed, most in ((1.5, 50.0), (30.0, 120.0)):  # noqa: B007 - `timed` reads it
        asked.clear()
        runner.prepare(LaunchBundle({}, {}, {}))
        assert runner.evaluate(LaunchBundle({}, {}, {}), seed="0").verdict is fault
        assert asked[1:] == [("evaluate", most)] * tries


def test_who_does_not_get_the_gpu_for_a_while_is_told(monkeypatch):
    """Else eager calls would be timed while others use it."""
    runner = Runner("softmax")
    kept = Report(Verdict.INFRASTRUCTURE, "verify", "another process has kept the GPU", fault=True, begun=False)
    monkeypatch.setattr(runner, "_ask", lambda kind, wall_s: kept)
    with pytest.raises(EvoError, match="expected to have the GPU for a while, got: another process"), runner.idle():
        pytest.fail("it has not got it")


def test_a_kernel_in_the_seeds_place_that_hangs_is_tried_case_by_case_and_not_for_long(monkeypatch):
    runner, asked = Runner("softmax", wall_s=120.0), []
    hung = Report(Verdict.TIMEOUT, "verify", "not finished", fault=True)

    def ask(kind, seed, kernel, other, *, wall_s):
        asked.append((list(kernel.plans), wall_s))
        return hung if "b" in kernel.plans else dict.fromkeys(kernel.plans, OK)

    monkeypatch.setattr(runner, "_switch_to", lambda task: None)
    monkeypatch.setattr(runner, "_ask", ask)
    kernel = LaunchBundle({"a": None, "b": None}, {}, {})
    assert runner.beside("softmax", LaunchBundle({}, {}, {}), kernel, False) == {"a": OK, "b": hung}
    assert asked == [(["a", "b"], BESIDE_S), (["a"], BESIDE_S), (["b"], BESIDE_S)]


def test_others_are_evaluated_beside_a_certificate_and_memory_it_takes_is_not_their_fault(monkeypatch, tmp_path):
    """The process of the certificate has the GPU's memory until it ends."""
    runner, holding, evaluating = Runner("softmax"), threading.Event(), threading.Event()
    monkeypatch.setattr(runner, "_ask", lambda kind, *request, wall_s: [])

    def timed(kind, *request, wall_s):
        if kind == "evaluate" and holding.is_set():
            evaluating.set()
            return Report(Verdict.OUT_OF_MEMORY, "verify", "device memory", seconds=1.0)
        return dataclasses.replace(OK, seconds=2.0)

    def certified(drawn):
        holding.set()
        assert evaluating.wait(60), "nothing was evaluated meanwhile"
        holding.clear()
        return []

    monkeypatch.setattr(runner, "_timed", timed)
    nothing = LaunchBundle({}, {}, {})
    runner.prepare(nothing)
    with ThreadPoolExecutor(1) as pool:
        certificate = pool.submit(runner.compare, None, [], seed="c", folder=tmp_path, run=certified)
        assert holding.wait(60)
        report = runner.evaluate(nothing, seed="0")
        assert certificate.result(60) == []
    assert (report.verdict, report.seconds) == (Verdict.OK, 3.0)
    monkeypatch.setattr(runner, "_timed", lambda *_, wall_s: Report(Verdict.OUT_OF_MEMORY, "verify", seconds=1.0))
    report = runner.evaluate(nothing, seed="0")  # nobody else has the memory
    assert (report.verdict, report.seconds) == (Verdict.OUT_OF_MEMORY, 1.0)


# --- a process without a GPU -----------------------------------------------------------------------------------------

# In the place of the runner's process: answers as it does, but keeps requests of some kinds waiting for the GPU lock.
# It reads no request, so it need not import what is in it.
STAND_IN = f"""#!{sys.executable}
import sys, time
from multiprocessing.connection import Connection
from pathlib import Path
folder, connection = Path(__file__).parent, Connection(int(sys.argv[4]))
with open(folder / "started", "a") as started:
    started.write("x")
while True:
    try:
        request = connection.recv_bytes()
    except EOFError:
        break
    if any(kind.encode() in request for kind in WAITING):
        (folder / "waits").touch()
        time.sleep(600)
    connection.send(None)
    connection.send_bytes({pickle.dumps(OK)!r} if b"prepare" in request else {pickle.dumps({})!r})
"""
NOTHING = LaunchBundle({}, {}, {})


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Returns a function that puts a process in the place of the runner's: `stand_in(*kinds that wait)`."""

    def install(*waiting: str) -> Path:
        program = tmp_path / "python"
        program.write_text(STAND_IN.replace("WAITING", repr(waiting)))
        program.chmod(0o755)
        monkeypatch.setattr(module, "sys", SimpleNamespace(executable=str(program)))
        return tmp_path

    return install


def test_a_candidate_is_not_blamed_if_others_keep_the_gpu(monkeypatch, stand_in):
    folder = stand_in("evaluate")
    with Runner("softmax") as runner:
        assert runner.prepare(NOTHING).seconds > 0
        monkeypatch.setattr(module, "LOCK_S", 0.1)
        report = runner.evaluate(NOTHING, seed="0")
    assert (report.verdict, report.begun, report.seconds) == (Verdict.INFRASTRUCTURE, False, 0.0)
    assert report.message == "another process has kept the GPU, or PyTorch has compiled, for 0.1 s"
    assert (folder / "started").read_text() == "x"  # it did not wait again


@pytest.mark.parametrize("kind", ["task", "beside"])
def test_kernels_in_the_seeds_place_wait_once_if_others_keep_the_gpu(monkeypatch, stand_in, kind):
    folder = stand_in(kind)
    kernel = LaunchBundle({"a": None, "b": None}, {}, {})
    with Runner("softmax") as runner:
        runner.start({})
        monkeypatch.setattr(module, "LOCK_S", 0.1)
        found = runner.beside("softmax", NOTHING, kernel, False)
    assert {case: (report.verdict, report.begun) for case, report in found.items()} == dict.fromkeys(
        kernel.plans, (Verdict.INFRASTRUCTURE, False)
    )
    assert "another process has kept the GPU" in found["a"].message
    assert (folder / "started").read_text() == "x"


# Kind of the request that is under way -> a call that makes it.
CALLS = {
    "prepare": lambda runner, folder: runner.prepare(NOTHING),
    "evaluate": lambda runner, folder: runner.evaluate(NOTHING, seed="0"),
    "draw": lambda runner, folder: runner.compare(None, [], seed="0", folder=folder, run=lambda drawn: []),
    "elsewhere": lambda runner, folder: runner.elsewhere(NOTHING, seed="0"),
    "task": lambda runner, folder: runner.verify("softmax", NOTHING),
    "verify": lambda runner, folder: runner.verify("softmax", NOTHING),
    "baselines": lambda runner, folder: runner.baselines("softmax", NOTHING),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_request_under_way_ends_with_an_error_when_the_runner_is_closed(stand_in, kind):
    """No kernel is to blame that the process ended."""
    folder = stand_in(kind)
    runner = Runner("softmax")
    if kind == "evaluate":
        runner.prepare(NOTHING)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(CALLS[kind], runner, folder)
        while not (folder / "waits").exists():
            assert not asked.done(), asked.result()
            time.sleep(0.02)
        runner.close()
        with pytest.raises(EvoError, match="the runner is closed"):
            asked.result(60)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"), wall_s=15.0)
    yield lab
    lab.close()


@pytest.mark.gpu
@needs_gpu
def test_the_seed_is_verified_and_equals_itself(lab):
    assert lab.baseline.verdict is Verdict.OK, lab.baseline.message
    assert lab.baseline.check.cases >= 3 * len(lab.task.cases)
    for timing in lab.baseline.timings:
        assert timing.ratio == pytest.approx(1, abs=0.1)
        assert not timing.estimated


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", sources.RIGHT)
def test_right_candidates_are_ok(lab, name):
    report = lab.evaluate(sources.RIGHT[name])
    assert report.verdict is Verdict.OK, report.message
    assert report.check.max_error <= 1
    assert [t.case for t in report.timings] == ["small", "large"]


@pytest.mark.gpu
@needs_gpu
def test_a_faster_candidate_is_found_faster_and_short_kernels_are_launched_often(lab):
    small, large = lab.evaluate(sources.RIGHT["one pass"]).timings
    assert large.ratio > 1.2
    assert large.ci95[0] > 1
    assert large.significant
    assert small.terms["launches_per_sample"] > large.terms["launches_per_sample"]
    assert 0 < large.terms["of_copy_rate"] < 1.3


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", sources.WRONG)
def test_wrong_candidates_are_wrong(lab, name):
    source, message = sources.WRONG[name]
    report = lab.evaluate(source)
    assert report.verdict is Verdict.WRONG, report
    assert message in report.message


@pytest.mark.gpu
@needs_gpu
def test_results_that_differ_between_replays_need_the_leave_of_the_task(lab, tmp_path):
    report = lab.evaluate(sources.ATOMIC)
    assert report.verdict is Verdict.WRONG
    assert "replays on the same inputs differ" in report.message
    tolerant = Lab(tmp_path, sources.TASK + "\ndeterministic = False\n")
    try:
        assert tolerant.evaluate(sources.ATOMIC).verdict is Verdict.OK
    finally:
        tolerant.close()


@pytest.mark.gpu
@needs_gpu
def test_a_time_below_the_roofline_is_refused(tmp_path):
    lab = Lab(tmp_path, sources.TASK.replace("return 2 * 4 *", "return 100 * 4 *"))
    lab.close()
    assert lab.baseline.verdict is Verdict.REJECTED
    assert "impossible" in lab.baseline.message


@pytest.mark.gpu
@needs_gpu
def test_outputs_left_by_an_earlier_replay_do_not_help(lab):
    """Nor do the numbers that some replays begin from instead: what takes them for results is wrong."""
    report = lab.evaluate(sources.MEMO)
    assert report.verdict is Verdict.WRONG
    assert "nothing has written" in report.message


@pytest.mark.gpu
@needs_gpu
def test_an_autotuned_kernel_runs_in_its_fastest_configuration(lab):
    report = lab.evaluate(sources.AUTOTUNED)
    assert report.verdict is Verdict.OK, report.message
    assert report.choices == {"small": [1], "large": [1], "odd": [1]}


@pytest.mark.gpu
@needs_gpu
def test_too_much_memory_is_a_verdict_and_the_process_stays(lab):
    work, before = lab.work(sources.RIGHT["one pass"]), lab.runner.respawns
    plans = {n: dataclasses.replace(p, buffers=(*p.buffers, Buffer(1 << 40))) for n, p in work.plans.items()}
    report = lab.runner.evaluate(dataclasses.replace(work, plans=plans), seed="1")
    assert report.verdict is Verdict.OUT_OF_MEMORY
    assert lab.runner.respawns == before
    assert lab.evaluate(sources.RIGHT["one pass"]).verdict is Verdict.OK


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("source", "verdict"),
    [(sources.ILLEGAL, Verdict.RUNTIME_ERROR), (sources.ENDLESS, Verdict.TIMEOUT)],
    ids=["illegal address", "endless loop"],
)
def test_faults_are_verdicts_and_the_next_candidate_is_measured(lab, source, verdict):
    before = lab.runner.respawns
    report = lab.evaluate(source)
    assert report.verdict is verdict, report.message
    assert "Traceback" not in report.message  # the process told of the fault, or was killed for its silence
    assert lab.evaluate(sources.RIGHT["one pass"]).verdict is Verdict.OK
    tries = 1 if verdict is Verdict.TIMEOUT else 2  # after each of them the process is replaced
    assert lab.runner.respawns == before + tries


@pytest.mark.gpu
@needs_gpu
def test_a_candidate_that_is_far_too_slow_soon_gives_the_gpu_back(lab):
    before = lab.runner.respawns
    report = lab.evaluate(sources.CRAWLING)
    assert report.verdict is Verdict.TIMEOUT
    assert "one execution takes" in report.message
    assert lab.runner.respawns == before


@pytest.mark.gpu
@needs_gpu
def test_a_runner_killed_from_outside_is_replaced_and_the_candidate_tried_again(lab):
    os.kill(lab.runner._process._process.pid, signal.SIGKILL)
    report = lab.evaluate(sources.RIGHT["one pass"])
    assert report.verdict is Verdict.OK
    assert "first try" in report.note


IN_PLACE_TASK = '''"""x *= 1.5, in place."""
import torch
from fitness import Case

entry = "grow"
writes = ("x",)
cases = [Case("one", {"N": 1 << 20}, cpu_axes={"N": 64})]

def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    x *= 1.5
'''
IN_PLACE = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 1.5, mask=i < n)

def grow(x):
    kernel[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), BLOCK=1024)
"""


@pytest.mark.gpu
@needs_gpu
def test_written_arguments_are_restored_before_every_replay(tmp_path):
    lab = Lab(tmp_path, IN_PLACE_TASK, IN_PLACE)
    try:
        assert lab.baseline.verdict is Verdict.OK, lab.baseline.message
        assert lab.evaluate(IN_PLACE.replace("1.5", "1.25")).verdict is Verdict.WRONG
    finally:
        lab.close()


COLD_TASK = '''"""x * 2, float32: input and output fit into the L2 cache together."""
import torch
from fitness import Case

entry = "double"
stress = False
cases = [Case(f"{4 * n >> 20} MiB", {"N": n}, cpu_axes={"N": 64}) for n in (1 << 18, 1 << 20, 1 << 22)]

def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x * 2
'''
COLD = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

def double(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""


@pytest.mark.gpu
@needs_gpu
def test_a_kernel_cannot_keep_its_input_in_the_cache_for_the_next_replay(tmp_path):
    lab = Lab(tmp_path, COLD_TASK, COLD)
    try:
        sticky = COLD.replace("mask=i < n)", 'mask=i < n, eviction_policy="evict_last")', 1)
        report = lab.evaluate(sticky)
        assert report.verdict is Verdict.OK, report.message
        assert all(timing.ratio < 1.04 for timing in report.timings), [t.ratio for t in report.timings]
    finally:
        lab.close()


DOT_TASK = '''"""a @ b in float32."""
import torch
from fitness import Case

entry = "product"
cases = [Case("square", {"N": 512}, cpu_axes={"N": 32})]

def inputs(case, generator):
    n = case.axes["N"]
    return tuple(torch.randn(n, n, generator=generator, device=generator.device) for _ in range(2))

def reference(a, b):
    return a @ b
'''
DOT = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        k = start + tl.arange(0, BLOCK)
        total += tl.dot(
            tl.load(a + i[:, None] * n + k[None, :]), tl.load(b + k[:, None] * n + j[None, :]), input_precision="ieee"
        )
    tl.store(c + i[:, None] * n + j[None, :], total)

def product(a, b):
    c, n = torch.empty_like(a), a.shape[0]
    kernel[(n // 32, n // 32)](a, b, c, n, BLOCK=32)
    return c
"""


@pytest.mark.gpu
@needs_gpu
def test_tensor_cores_that_round_float32_are_not_precise_enough(tmp_path):
    lab = Lab(tmp_path, DOT_TASK, DOT)
    try:
        assert lab.baseline.verdict is Verdict.OK, lab.baseline.message
        report = lab.evaluate(DOT.replace("ieee", "tf32"))
        assert report.verdict is Verdict.WRONG, report
        assert "wrong" in report.message
    finally:
        lab.close()


@pytest.mark.gpu
@needs_gpu
def test_a_seed_that_is_too_slow_to_be_timed_is_refused_at_once(tmp_path):
    lab = Lab(tmp_path, seed=sources.CRAWLING)
    try:
        assert lab.baseline.verdict is Verdict.UNSUPPORTED, lab.baseline.message
        assert "one execution of the seed kernel takes" in lab.baseline.message
        assert "smaller sizes" in lab.baseline.message
        assert lab.baseline.seconds < 60  # it would take a hundred executions to prepare it
    finally:
        lab.close()


@pytest.mark.gpu
@needs_gpu
def test_a_seed_can_be_prepared_after_one_that_failed(tmp_path):
    lab = Lab(tmp_path, seed=sources.WRONG["zeros"][0])
    try:
        assert lab.baseline.verdict is Verdict.WRONG
        assert lab.runner.prepare(lab.work(sources.SEED)).verdict is Verdict.OK
    finally:
        lab.close()
