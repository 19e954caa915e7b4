"""Certificates: the sandboxed job and the judgement for real without a GPU, all of it on one."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from evo.core.errors import EvoError
from evo.core.records import Candidate, Case, Certificate, Evidence, Verdict, certificate_from_dict
from evo.core.text import MOST
from fitness.certify import certify, eager
from fitness.certify.certify import Certifier, unseen_cases
from fitness.certify.sanitize import PROGRAM, read_output
from fitness.cuda.nvidia import find_tool
from fitness.gpu import eager_check
from fitness.gpu.eager_check import Match
from fitness.gpu.exchange import ExchangeError, put, take
from fitness.gpu.runner import Report
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle
from tests import gpu_sources as sources

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

# Seed and candidates of plain PyTorch: what the eager job runs needs no GPU then.
HOST = "import torch\n\ndef shifted(x):\n    {body}\n"
RIGHT = HOST.format(body="return x * 2 + x.sum(1, keepdim=True)")


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.py").write_text(sources.TASK)
    (folder / "kernel.py").write_text(sources.SEED)
    return load_task(folder)


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90", ("eager",)) as zygote:
        yield zygote


# --- what is tried ---------------------------------------------------------------------------------------------------


def test_unseen_sizes_change_one_axis_of_the_smallest_case(task):
    cases = unseen_cases(task)
    assert [case.axes for case in cases] == [{"M": 66, "N": 1003}, {"M": 77, "N": 860}]
    assert all(case.role == "holdout" for case in cases)
    assert not {case.name for case in cases} & {case.name for case in task.cases}


def test_a_size_of_one_grows_and_a_size_of_zero_stays():
    case = Case("one", {"B": 1, "N": 0})
    fake = type("Task", (), {"certify": (), "cases": (case,)})
    assert [c.axes for c in unseen_cases(fake)] == [{"B": 2, "N": 0}]


def test_a_task_may_name_the_sizes_itself(tmp_path):
    (tmp_path / "task.py").write_text(sources.TASK + '\ncertify = [Case("prime", {"M": 7, "N": 13})]\n')
    (tmp_path / "kernel.py").write_text(sources.SEED)
    assert [case.name for case in unseen_cases(load_task(tmp_path))] == ["prime"]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float8_e4m3fn])
def test_tensors_come_back_as_they_went(tmp_path, dtype):
    dense = torch.randint(0, 2, (4, 6)).to(dtype)
    views = (dense, dense.t(), dense[:, ::2], dense[:0], dense[0, 0], dense[:1].expand(4, 6), dense[:, :1].expand(4, 6))
    for tensor in views:
        again = take(put(tensor, tmp_path / "x"), tmp_path, "cpu")
        assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(again.to(torch.float32), tensor.to(torch.float32))
    assert take(put(0.5, tmp_path / "x"), tmp_path, "cpu") == 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../secret"},
        {"file": "missing"},
        {"file": "link"},
        {"shape": [3]},
        {"shape": [-4]},
        {"dtype": "complex64"},
        {"strides": [1 << 40]},
        {"strides": [1, 1]},
        {"strides": "x"},
    ],
)
def test_what_an_untrusted_process_describes_is_checked(tmp_path, change):
    (tmp_path.parent / "secret").write_bytes(bytes(16))
    os.symlink(tmp_path.parent / "secret", tmp_path / "link")
    described = put(torch.zeros(4), tmp_path / "x")
    with pytest.raises(ExchangeError):
        take({**described, **change}, tmp_path, "cpu")


# --- the job ---------------------------------------------------------------------------------------------------------


def answer_of(zygote: Zygote, task: Task, source: str, folder: Path, case: Case, samples: int = 0) -> dict[str, Any]:
    """What the sandboxed job makes of a source, on the CPU."""
    drawn = eager_check.write(oracle.make_inputs(task, case, 7, device="cpu"), folder / "0.in")
    calls = [{"name": "0", "args": drawn, "written": [], "samples": samples}]
    payload = {"source": source, "entry": task.entry, "device": "cpu", "calls": calls}
    result = zygote.run("eager", payload, scratch=folder, limits=Limits(memory_bytes=8 << 30))
    assert result.status == "ok", result
    assert "seccomp" in result.layers
    return dict(result.value["calls"][0])


def test_right_outputs_pass_and_times_are_told(zygote, task, tmp_path):
    case = task.cases[0].on_cpu()
    answer = answer_of(zygote, task, RIGHT, tmp_path, case, samples=5)
    assert len(answer["samples_us"]) == 5
    match = eager_check.compare_answer(task, case, 7, answer, tmp_path, "cpu")
    assert match.verdict is Verdict.OK, match.message
    assert not match.bitwise
    assert (
        eager_check.compare_answer(task, case, 8, answer, tmp_path, "cpu").verdict is Verdict.WRONG
    )  # of other inputs


# What host code of earlier versions imports; an argument that not every call has.
WRITES = """import torch
from triton.ops.matmul_perf_model import early_config_prune

def add_one(x, other):
    x += 1
"""


def test_arguments_that_are_written_come_back_where_there_are_any(zygote, tmp_path):
    x = torch.arange(6.0)
    drawn = [put(x, tmp_path / "0.in.0"), put(None, tmp_path / "0.in.1")]
    calls = [{"name": "0", "args": drawn, "written": [0, 1], "samples": 0}]
    payload = {"source": WRITES, "entry": "add_one", "device": "cpu", "calls": calls}
    (answer,) = zygote.run("eager", payload, scratch=tmp_path, limits=Limits(memory_bytes=8 << 30)).value["calls"]
    assert (answer["structure"], answer["modified"]) == ("none", [])
    (written,) = answer["outputs"]
    assert torch.equal(take(written, tmp_path, "cpu"), x + 1)


def test_outputs_must_be_those_of_the_plan_to_the_bit(zygote, task, tmp_path):
    case = task.cases[0].on_cpu()
    answer = answer_of(zygote, task, RIGHT, tmp_path, case)
    same = eager_check.compare_answer(
        task, case, 7, answer, tmp_path, "cpu", lambda a: [a[0] * 2 + a[0].sum(1, keepdim=True)]
    )
    assert same.bitwise
    near = eager_check.compare_answer(
        task, case, 7, answer, tmp_path, "cpu", lambda a: [a[0] * 2 + a[0].sum(1, keepdim=True) + 1e-6]
    )
    assert near.verdict is Verdict.WRONG
    assert "recorded plan" in near.message


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (1.5, 0.0, Verdict.OK),
        (1.5, 1.5, Verdict.WRONG),  # written after all
        (torch.nan, torch.nan, Verdict.OK),  # what comes of either memory
    ],
)
def test_what_a_plan_makes_of_the_memory_it_gets_is_not_compared(zygote, task, tmp_path, first, second, verdict):
    """Where the seed is the reference: the last column is one that its kernel does not write."""
    case = task.cases[0].on_cpu()
    answer = answer_of(zygote, task, RIGHT, tmp_path, case)

    def planned(arguments, fill=None):
        outputs = arguments[0] * 2 + arguments[0].sum(1, keepdim=True)
        outputs[:, -1] = second if fill == 0 else first
        return [outputs]

    def expected(case, key):
        return oracle.expect(task, case, key)

    by_seed = dataclasses.replace(task, reference=None)
    match = eager_check.compare_answer(by_seed, case, 7, answer, tmp_path, "cpu", planned, expected)
    assert (match.verdict, match.bitwise) == (verdict, False)
    # A reference in PyTorch writes all of its outputs.
    match = eager_check.compare_answer(task, case, 7, answer, tmp_path, "cpu", planned)
    assert match.verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("body", "verdict", "message"),
    [
        ("return x * 2", Verdict.WRONG, "wrong"),
        ("return x.double() * 2 + x.double().sum(1, keepdim=True)", Verdict.WRONG, "float64"),
        ("return [x]", Verdict.WRONG, "must return 'tensor'"),
        ("return 7", Verdict.WRONG, "returned int"),
        ("y = x * 2 + x.sum(1, keepdim=True); x.zero_(); return y", Verdict.WRONG, "argument 0 was modified"),
        ("raise ValueError('only eagerly')", Verdict.RUNTIME_ERROR, "line 4: ValueError: only eagerly"),
    ],
)
def test_what_is_wrong_is_found(zygote, task, tmp_path, body, verdict, message):
    case = task.cases[0].on_cpu()
    answer = answer_of(zygote, task, HOST.format(body=body), tmp_path, case)
    match = eager_check.compare_answer(task, case, 7, answer, tmp_path, "cpu")
    assert (match.verdict, message in match.message) == (verdict, True), match


@pytest.mark.parametrize("verdict", ["ok", "duplicate", "infrastructure", "splendid", 3])
def test_a_process_cannot_acquit_itself(task, tmp_path, verdict):
    answer = {"error": {"verdict": verdict, "message": "fine", "line": 0}}
    assert eager_check.compare_answer(task, task.cases[0], 7, answer, tmp_path, "cpu").verdict is Verdict.RUNTIME_ERROR


def test_of_outputs_of_another_form_nothing_is_read(task, tmp_path, monkeypatch):
    monkeypatch.setattr(eager_check, "take", lambda *_: pytest.fail("was read"))
    case = task.cases[0].on_cpu()
    shape = [case.axes["M"], case.axes["N"]]
    right = {"file": "x", "dtype": "float32", "shape": shape, "strides": [shape[1], 1]}
    for outputs in ([right] * 1000, [{**right, "shape": [1 << 40, 1 << 40]}], [{**right, "shape": [0, 1 << 40]}]):
        answer = {"structure": "tensor", "outputs": outputs, "modified": []}
        match = eager_check.compare_answer(task, case, 7, answer, tmp_path, "cpu")
        assert match.verdict is Verdict.WRONG
    match = eager_check.compare_answer(
        task, case, 7, {**answer, "structure": "dict:" + "k" * 10_000_000}, tmp_path, "cpu"
    )
    assert match.verdict is Verdict.WRONG and len(match.message) <= MOST


def test_kernels_that_make_tensor_descriptors_get_memory_for_them():
    from triton.runtime import _allocation

    token = _allocation._allocator.set(_allocation.NullAllocator())
    try:
        with pytest.raises(RuntimeError):
            _allocation._allocator.get()(128, 64, None)
        eager._descriptor_memory("cpu")
        assert _allocation._allocator.get()(128, 64, None).nbytes == 128
    finally:
        _allocation._allocator.reset(token)


# --- the certifier, with a runner that works on the CPU --------------------------------------------------------------


class CpuRunner:
    """`fitness.gpu.runner.Runner` as far as `quick` needs it."""

    facts = MappingProxyType({"capability": (9, 0), "uuid": ""})

    def __init__(self, task: Task) -> None:
        self.task, self.alone = task, False

    def compare(self, work, cases, *, seed, folder, run):
        cases = [case.on_cpu() for case in cases]
        drawn = [oracle.make_inputs(self.task, case, 1, device="cpu") for case in cases]
        answers = run([eager_check.write(arguments, folder / f"{i}.in") for i, arguments in enumerate(drawn)])
        return [
            eager_check.compare_answer(self.task, c, 1, a, folder, "cpu") for c, a in zip(cases, answers, strict=True)
        ]

    def elsewhere(self, bundle, *, seed):
        return self.found_elsewhere

    @contextmanager
    def idle(self):
        self.alone = True
        yield
        self.alone = False


@pytest.fixture
def certifier(task, zygote, monkeypatch):
    """Of a task whose seed needs no GPU: `certifier(seed)`."""
    monkeypatch.setattr(certify, "Zygote", lambda *_: zygote)  # starting one takes seconds
    monkeypatch.setattr(certify, "DEVICE", "cpu")
    monkeypatch.setattr(certify, "LIMITS", Limits(wall_s=20, memory_bytes=8 << 30))

    def get(seed: str = RIGHT) -> Certifier:
        changed = dataclasses.replace(task, seed_source=seed)
        return Certifier(changed, CpuRunner(changed))

    return get


def test_a_certificate_lists_what_was_tried(certifier, task):
    certificate = certifier().quick(RIGHT, None, seed="s")
    assert certificate.verdict is Verdict.OK, certificate.message
    assert [check.what for check in certificate.checks] == [f"eager: {case.name}" for case in task.cases]
    assert certificate.candidate == Candidate(RIGHT).id
    assert "seccomp" in certificate.layers
    assert certificate.summary == "passed (3 passed)"


def test_a_candidate_that_is_wrong_or_dies_fails(certifier):
    mine = certifier()
    wrong = mine.quick(HOST.format(body="return x * 2"), None, seed="s")
    assert wrong.verdict is Verdict.WRONG
    assert wrong.message.startswith("small: output is wrong")
    dead = mine.quick("import os\n" + HOST.format(body="os._exit(0)"), None, seed="s")
    assert dead.verdict is Verdict.RUNTIME_ERROR
    assert dead.checks == (Evidence("eager", "failed", dead.message),)


TAKEN_OVER = """
import sys
job = sys.modules["fitness.certify.eager"]
called = job._called
def forged(*arguments):
    answer = called(*arguments)
    CHANGE
    return answer
job._called = forged
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("answer = 3", "its answer is 3"),
        ("answer = {}", "'structure' is missing"),
        ("answer['structure'] = []", "the structure of its results is []"),
        ("answer['outputs'] = 'none'", "its outputs are 'none'"),
        ("answer['outputs'] = [{'value': 1, 'strides': []}]", "output 0 is no tensor: {'strides': [], 'value': 1}"),
        ("answer['outputs'] = [7]", "output 0 is no tensor: 7"),
        ("answer['outputs'][0]['file'] = 3", "output 0 is of dtype 'float32' in the file 3"),
        ("answer['outputs'][0]['dtype'] = ['float32']", "output 0 is of dtype ['float32']"),
        ("answer['outputs'][0]['shape'] = [0, 1 << 70]", "shape and strides of output 0 are [0, 118059162"),
        ("answer['outputs'][0]['strides'] = [float('inf'), 1]", "shape and strides of output 0 are [inf, 1]"),
        ("answer['outputs'][0]['strides'] = [1]", "output 0 has 2 dimensions and 1 strides"),
        ("answer['modified'] = 3", "the modified arguments are 3"),
        ("answer['modified'] = [{}]", "the modified arguments are [{}]"),
        ("del answer['samples_us']", "'samples_us' is missing"),
        ("answer['samples_us'] = None", "its times are None"),
        ("answer['samples_us'] = [float('inf')]", "its times are [inf]"),
        ("answer['samples_us'] = [1e308, 1e308]", "its times are [1e+308, 1e+308]"),
        ("answer = {'error': 'no'}", "a failure that makes no sense"),
        ("answer = {'error': {'verdict': 'infrastructure', 'message': '', 'line': 0}}", "cannot claim the verdict"),
        (
            "answer = {'error': {'verdict': 'wrong', 'message': '', 'line': float('inf')}}",
            "whose line is a line number",
        ),
        ("answer = {'error': {'verdict': 'wrong', 'message': [], 'line': 0}}", "whose message is text"),
        ("answer = []\n    for _ in range(500): answer = [answer]", "its answer is [[[[[[[...]]]]]]]"),
    ],
)
def test_a_malformed_answer_is_the_candidates_fault(certifier, change, message):
    forged = TAKEN_OVER.replace("CHANGE", change) + RIGHT
    certificate = certifier().quick(forged, None, seed="s")
    assert certificate.verdict is Verdict.RUNTIME_ERROR, certificate
    assert message in certificate.message and certificate.message.startswith("small: the eager process gave a malf")
    assert {check.outcome for check in certificate.checks} == {"failed"}


def test_what_is_said_of_a_failure_is_short(certifier):
    message = certifier().quick(HOST.format(body="raise ValueError('no' * 100_000)"), None, seed="s").message
    assert message.startswith("small: line 4: ValueError: nono") and len(message) < MOST + 100


def test_where_the_seed_cannot_be_run_nothing_is_held_against_a_candidate(certifier):
    broken = HOST.format(body="raise OSError('no such device')")
    mine = certifier(broken)
    assert mine.quick(RIGHT, None, seed="s").verdict is Verdict.OK  # what passes has passed
    certificate = mine.quick(broken.replace("no such", "not a single"), None, seed="s")
    assert certificate.verdict is Verdict.INFRASTRUCTURE
    assert "no such device" in certificate.message
    assert {check.outcome for check in certificate.checks} == {"not run"}
    assert certificate.summary.startswith("nothing was certified on a GPU: the seed kernel's own Python")


def test_results_that_could_not_be_compared_are_no_verdict(certifier, monkeypatch):
    mine = certifier()
    report = Report(Verdict.RUNTIME_ERROR, "verify", "CUDA error", fault=True)
    assert mine.quick(RIGHT, None, seed="s").verdict is Verdict.OK
    monkeypatch.setattr(CpuRunner, "compare", lambda *_, **__: report)
    assert mine.quick(RIGHT, None, seed="s").verdict is Verdict.INFRASTRUCTURE


def test_a_case_without_a_finite_reference_is_left_out_of_a_certificate(certifier, monkeypatch):
    mine, wrong = certifier(), HOST.format(body="return x * 2")
    compare, none = CpuRunner.compare, Match("small", Verdict.INFRASTRUCTURE, "the reference is not finite")
    monkeypatch.setattr(CpuRunner, "compare", lambda *a, **k: [none, *compare(*a, **k)[1:]])
    certificate = mine.quick(RIGHT, None, seed="s")
    assert certificate.verdict is Verdict.OK and certificate.summary == "passed (1 not run, 2 passed)"
    assert mine.quick(wrong, None, seed="s").verdict is Verdict.WRONG
    monkeypatch.setattr(CpuRunner, "compare", lambda *a, **k: [none] * len(compare(*a, **k)))
    certificate = mine.quick(RIGHT, None, seed="s")
    assert certificate.verdict is Verdict.INFRASTRUCTURE and "the reference is not finite" in certificate.message


def test_sizes_that_the_seed_does_not_handle_are_not_asked_of_others(certifier):
    picky = HOST.format(body="assert len(x) != 3; return x * 2 + x.sum(1, keepdim=True)")
    allowed, left_out = certifier(picky)._allowed("s")
    assert [case.axes["N"] for case in allowed] == [1003]
    assert [check.outcome for check in left_out] == ["not run"]
    assert "the seed does not handle it: line 4: AssertionError" in left_out[0].detail


def test_sizes_at_which_nothing_says_what_is_right_are_not_tried(certifier, monkeypatch):
    """With `reference = "seed"` the runner knows the seed's results at the task's own sizes alone."""
    from fitness.gpu.runner import LaunchBundle

    mine, asked = certifier(), []
    compare = CpuRunner.compare

    def compared(self, work, cases, **how):
        asked.append([case.name for case in cases])
        return compare(self, work, cases, **how)

    monkeypatch.setattr(mine, "_task", dataclasses.replace(mine._task, reference=None))
    monkeypatch.setattr(CpuRunner, "compare", compared)
    monkeypatch.setattr(mine, "_bundle", lambda *_: LaunchBundle({}, {}, {}))
    monkeypatch.setattr("fitness.certify.sanitize.find_tool", lambda name: None)
    certificate = mine.full(RIGHT, seed="s")
    assert certificate.verdict is Verdict.OK, certificate
    assert asked == [["small", "large", "odd"]] * 2  # of the seed and of the candidate
    unseen = [check for check in certificate.checks if " with " in check.what]
    assert [check.what for check in unseen] == ["eager: odd with M=66", "eager: odd with N=860"]
    assert all(check.outcome == "not run" and "what the seed kernel computes" in check.detail for check in unseen)


def test_a_certificate_survives_json():
    certificate = Certificate(
        "id", Verdict.WRONG, "no", (Evidence("eager: a", "failed", "no", {"max_error": 2.0}),), ("userns",)
    )
    assert certificate_from_dict(dataclasses.asdict(certificate)) == certificate


# --- compute-sanitizer -----------------------------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\nfinished: 6 launches of 6 cases\n========= ERROR SUMMARY: 0 errors\n"
BAD = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x1a0
========= ERROR SUMMARY: 34 errors
"""
HAZARD = """========= Error: Potential WAW hazard detected at __shared__ 0x404 in block (0,0,0) :
finished: 1 launches of 1 cases
========= RACECHECK SUMMARY: 2 hazards displayed (1 errors, 1 warnings)
"""


def test_what_the_sanitizer_says_is_read():
    assert read_output("memcheck", CLEAN).text == "0 errors; 6 launches of 6 cases"
    bad = read_output("memcheck", BAD)
    assert (bad.errors, bad.problem) == (34, "")
    assert "Invalid __global__ read of size 4 bytes" in bad.text
    assert read_output("racecheck", HAZARD).errors == 2


@pytest.mark.parametrize("output", ["", "Device not supported", CLEAN.replace("finished", "began"), CLEAN[:40]])
def test_a_tool_that_did_not_get_through_has_shown_nothing(output):
    finding = read_output("memcheck", output)
    assert finding.problem.startswith("it did not run to its end")


def test_a_watched_process_has_its_context_before_others_wait_for_the_gpu(monkeypatch, tmp_path):
    """A tool may hang while it makes the context: then nobody waits, and the process is ended."""
    import contextlib
    import pickle

    from fitness.certify import sanitize_process

    order: list[object] = []

    @contextlib.contextmanager
    def held(name, seconds):
        order.append((name, seconds))
        yield
        order.append("given back")

    (tmp_path / "work").write_bytes(pickle.dumps((None, [], "s")))
    monkeypatch.setattr(sanitize_process, "load_task", lambda *_, **__: None)
    monkeypatch.setattr(sanitize_process, "ended_after", lambda seconds: held("limit", seconds))
    monkeypatch.setattr(sanitize_process, "held_for", held)
    monkeypatch.setattr(sanitize_process.torch, "empty", lambda *_, device: order.append(f"context on {device}"))
    monkeypatch.setattr(sanitize_process, "replayed", lambda *_: order.append("replayed") or (3, 0))
    sanitize_process.main(["task", str(tmp_path / "work"), "GPU-1", "60", "20"])
    assert order == [
        ("limit", 60), "context on cuda", "given back", ("limit", 1800), "given back",
        ("GPU-1", 60), "replayed", "given back",
    ]  # fmt: skip


def test_a_tool_that_takes_long_leaves_out_the_larger_cases(monkeypatch, tmp_path, capsys):
    """Others wait for the GPU meanwhile."""
    from types import SimpleNamespace

    from evo.core.records import Case
    from fitness.certify import sanitize_process

    clock, executed = iter((0.0, 1.0, 19.0, 21.0)), []
    plans = {name: SimpleNamespace(buffers=[SimpleNamespace(nbytes=n)], launches=[1, 2]) for name, n in SIZES.items()}
    bundle, cases = SimpleNamespace(plans=plans), [Case(name, {}) for name in SIZES]
    program = SimpleNamespace(write_inputs=lambda _: None, execute=lambda: None)
    monkeypatch.setattr(sanitize_process, "Program", lambda plan, *_, **__: executed.append(plan) or program)
    monkeypatch.setattr(sanitize_process, "Loaded", lambda _: SimpleNamespace(choices=plans, kernels=lambda _: []))
    monkeypatch.setattr(sanitize_process.oracle, "make_inputs", lambda *_: ())
    monkeypatch.setattr(sanitize_process.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(sanitize_process.time, "monotonic", lambda: next(clock))
    found = sanitize_process.replayed(SimpleNamespace(written=()), bundle, cases, "s", 20)
    assert found == (4, 2) and executed == [plans["small"], plans["middle"]]


SIZES = {"large": 300, "small": 100, "middle": 200}


@pytest.mark.skipif(bool(find_tool(PROGRAM)), reason="it is installed")
def test_without_the_tool_the_check_is_not_run(task, tmp_path):
    from fitness.certify.sanitize import sanitize
    from fitness.gpu.runner import LaunchBundle

    finding = sanitize(
        "memcheck", task.folder, LaunchBundle({}, {}, {}), [],
        seed="s", folder=tmp_path, gpu="", stop=threading.Event(), begin=threading.Event(),
    )  # fmt: skip
    assert finding.problem == "compute-sanitizer is not installed"
    assert certify._sanitized(finding) == Evidence("memcheck", "not run", "compute-sanitizer is not installed")


@pytest.mark.parametrize(
    ("found", "outcomes"),
    [
        (
            {
                "small": Report(Verdict.OK, "done"),
                "large": Report(Verdict.WRONG, "verify", "output is wrong"),
                "odd": Report(Verdict.INFRASTRUCTURE, "verify", "nothing could be compared"),
            },
            {
                "other values: small": ("passed", "within the budget of the seed kernel"),
                "other values: large": ("noted", "output is wrong"),
                "other values: odd": ("not run", "nothing could be compared"),
            },
        ),
        (Report(Verdict.TIMEOUT, "verify", "not finished"), {"other values": ("not run", "not finished")}),
    ],
)
def test_values_that_the_task_does_not_draw_are_tried_and_a_difference_is_noted(
    monkeypatch, certifier, task, found, outcomes
):
    from fitness.gpu.runner import LaunchBundle

    def full(stress: bool) -> Certificate:
        mine = certifier()
        monkeypatch.setattr(mine, "_task", dataclasses.replace(mine._task, stress=stress))
        monkeypatch.setattr(mine, "_bundle", lambda *_: LaunchBundle({}, {}, {}))
        monkeypatch.setattr(mine._runner, "found_elsewhere", found, raising=False)
        return mine.full(RIGHT, seed="s")

    certificate = full(stress=False)
    assert certificate.verdict is Verdict.OK
    assert {c.what: (c.outcome, c.detail) for c in certificate.checks if "other values" in c.what} == outcomes
    assert not any("other values" in c.what for c in full(stress=True).checks)  # stressed inputs are verified anyway


def test_nobody_else_has_the_gpu_while_a_full_certificate_takes_times(monkeypatch, certifier):
    from fitness.gpu.runner import LaunchBundle

    mine, seen = certifier(), []
    run = mine._run_eagerly

    def watched(source, entry, calls, folder):
        seen.append((mine._runner.alone, sum(call["samples"] for call in calls) > 0))
        return run(source, entry, calls, folder)

    monkeypatch.setattr(mine, "_run_eagerly", watched)
    monkeypatch.setattr(mine, "_bundle", lambda *_: LaunchBundle({}, {}, {}))
    monkeypatch.setattr("fitness.certify.sanitize.find_tool", lambda name: None)
    mine._allowed("s")
    mine.quick(RIGHT, None, seed="s")
    seen.clear()
    mine.full(RIGHT, seed="s")
    mine.quick(RIGHT, None, seed="s")
    assert [both for both in seen if both != (False, False)] == [(True, True)]
    assert seen[-1] == (False, False)


TOOL = """#!{python}
import sys, time
from pathlib import Path
folder, name, file, gpu = Path({folder!r}), sys.argv[2], Path(sys.argv[-4]), sys.argv[-3]
def wait(*files):
    while not all(file.exists() for file in files):
        time.sleep(0.02)
(folder / name).touch()
wait(folder / "memcheck", folder / "racecheck")
{before}
wait(file)
(folder / f"{{name}} worked").touch()
print({said!r} if name == "memcheck" else "== RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
print("finished: on", gpu)
"""


@pytest.fixture
def with_tool(monkeypatch, tmp_path, certifier):
    """Makes a certifier whose tools both start before either ends; said: the summary of memcheck."""
    from fitness.gpu.runner import LaunchBundle

    def make(said: str, before: str = ""):
        tool = tmp_path / "tool"
        tool.write_text(TOOL.format(python=sys.executable, folder=str(tmp_path), said=said, before=before))
        tool.chmod(0o755)
        monkeypatch.setattr("fitness.certify.sanitize.find_tool", lambda name: str(tool))
        mine = certifier()
        monkeypatch.setattr(mine, "_gpu", "GPU-1")
        monkeypatch.setattr(mine, "_bundle", lambda *_: LaunchBundle({}, {}, {}))
        return mine

    return make


def test_the_tools_of_a_full_certificate_start_at_once_and_work_one_after_the_other(with_tool):
    """The runner is not held meanwhile."""
    first = 'if name == "memcheck": time.sleep(0.2); assert not (file.parent / "racecheck.pickle").exists()'
    certificate = with_tool("========= ERROR SUMMARY: 0 errors", first).full(RIGHT, seed="s")
    assert certificate.verdict is Verdict.OK, certificate
    found = {check.what: check for check in certificate.checks}
    assert all(found[name].outcome == "passed" for name in ("memcheck", "racecheck"))
    assert all(found[name].detail.endswith("on GPU-1") for name in ("memcheck", "racecheck"))


def test_what_memcheck_refuses_needs_no_racecheck(with_tool, tmp_path):
    """Racecheck may have the GPU for a minute."""
    certificate = with_tool("========= ERROR SUMMARY: 8 errors").full(RIGHT, seed="s")
    assert certificate.verdict is Verdict.RUNTIME_ERROR and certificate.message.startswith("memcheck: 8 errors")
    found = {check.what: check for check in certificate.checks}
    assert (found["racecheck"].outcome, found["racecheck"].detail) == ("not run", "stopped")
    assert (tmp_path / "memcheck worked").exists() and not (tmp_path / "racecheck worked").exists()


def test_what_fails_eagerly_waits_for_no_tool(with_tool, monkeypatch):
    mine = with_tool("========= ERROR SUMMARY: 0 errors", "time.sleep(3600)")
    mine._problem()
    mine._allowed("s")
    wrong = certify.Certificate("id", Verdict.WRONG, "call0: output is wrong")
    monkeypatch.setattr(mine, "_eager", lambda *_, **__: wrong)
    assert mine.full(RIGHT, seed="s").message == "call0: output is wrong"


@pytest.mark.parametrize("error", [EvoError("the runner is closed"), KeyboardInterrupt()], ids=["closed", "Ctrl-C"])
def test_after_an_error_the_tools_of_a_full_certificate_are_ended(monkeypatch, tmp_path, certifier, error):
    """With all that they started: they may wait for the GPU for half an hour, and Ctrl-C does not reach them."""
    from fitness.gpu.runner import LaunchBundle

    tool = tmp_path / "tool"
    tool.write_text(
        "#!/bin/sh\n"
        f'(sleep 30; touch "{tmp_path}/finished") &\n'
        f'echo $! $$ > "{tmp_path}/$2.new"; mv "{tmp_path}/$2.new" "{tmp_path}/$2"\n'
        "wait\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr("fitness.certify.sanitize.find_tool", lambda name: str(tool))
    mine, started = certifier(), [tmp_path / "memcheck", tmp_path / "racecheck"]
    monkeypatch.setattr(mine, "_bundle", lambda *_: LaunchBundle({}, {}, {}))
    mine._problem()
    mine._allowed("s")

    def fails(*_, **__):
        while not all(file.exists() for file in started):
            time.sleep(0.02)
        raise error

    monkeypatch.setattr(mine, "_eager", fails)
    with pytest.raises(type(error)):
        mine.full(RIGHT, seed="s")
    while any(alive(number) for file in started for number in file.read_text().split()):
        time.sleep(0.02)
    assert not (tmp_path / "finished").exists()


def alive(process: str) -> bool:
    """Whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu(task):
    """A prepared evaluator."""
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator

    with GpuEvaluator(task, get_target("sm_90")) as evaluator:
        evaluator.prepare()
        yield evaluator


@pytest.mark.gpu
@needs_gpu
def test_the_sandbox_with_a_gpu_lacks_three_layers(gpu):
    certificate = gpu.certify(sources.RIGHT["one pass"], seed=1)
    layers = {name for name, state in gpu.environment["sandbox"].items() if state == "active"}
    assert set(certificate.layers) == layers - {"not_dumpable", "tmpfs", "view"}


@pytest.mark.gpu
@needs_gpu
def test_a_new_champion_is_certified_before_it_counts(gpu):
    evaluation = gpu.evaluate(Candidate(sources.RIGHT["one pass"]), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert evaluation.environment["certificate"] == "eager: passed"
    again = gpu.evaluate(Candidate(sources.SEED), seed=2, known={})
    assert "certificate" not in again.environment  # no champion


@pytest.mark.gpu
@needs_gpu
def test_a_full_certificate_has_every_check(gpu):
    certificate = gpu.certify(sources.RIGHT["one pass"], seed=1)
    assert certificate.verdict is Verdict.OK, certificate
    found = {check.what: check for check in certificate.checks}
    names = ["small", "large", "odd", "odd with M=66", "odd with N=860"]
    assert list(found) == [*(f"eager: {name}" for name in names), "memcheck", "racecheck"]
    assert all("to the bit" in found[f"eager: {name}"].detail for name in names)
    assert found["eager: large"].figures["eager_us"] > 0
    expected = {"passed"} if find_tool(PROGRAM) else {"not run"}
    assert {found["memcheck"].outcome, found["racecheck"].outcome} == expected, found


@pytest.mark.gpu
@needs_gpu
def test_rows_that_share_their_memory_stay_so_in_every_check(tmp_path):
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator

    drawn = 'torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device)'
    shared = 'torch.randn(1, case.axes["N"], generator=generator, device=generator.device).expand(case.axes["M"], -1)'
    assert drawn in sources.TASK and "x + row + c" in sources.SEED
    (tmp_path / "task.py").write_text(sources.TASK.replace(drawn, shared).replace("return 2 * 4 *", "return 4 *"))
    (tmp_path / "kernel.py").write_text(sources.SEED.replace("x + row + c", "x + c"))
    with GpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        evaluator.prepare()
        certificate = evaluator.certify(sources.RIGHT["one pass"].replace("x + row + c", "x + c"), seed=1)
    assert certificate.verdict is Verdict.OK, certificate
    found = {check.what: check.outcome for check in certificate.checks}
    assert found["eager: small"] == "passed"
    assert found["memcheck"] == found["racecheck"] == ("passed" if find_tool(PROGRAM) else "not run"), certificate


@pytest.mark.gpu
@needs_gpu
def test_python_that_does_something_else_than_it_was_recorded_for_fails(gpu):
    """The gate is not asked here: what it lets through tomorrow must not be able to hide from this."""
    certifier, right = gpu._backend._prepared(), sources.RIGHT["one pass"]
    compiled = gpu._whole(right, gpu._compile(right))
    bundle = compiled.bundle({n: [0] for n in compiled.plans})
    other = right.replace("return o", "return x * 2 + x.sum(1, keepdim=True)")
    certificate = certifier.quick(other, bundle, seed="s")
    assert certificate.verdict is Verdict.WRONG
    assert "recorded plan" in certificate.message
    lazy = certifier.quick(right.replace("return o", "return o * 1.001"), bundle, seed="s")
    assert lazy.verdict is Verdict.WRONG


@pytest.mark.gpu
@needs_gpu
def test_what_the_seed_leaves_unwritten_is_not_compared(tmp_path):
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator

    def shorter(source):  # its last load or store is the store
        head, tail = source.rsplit("mask=mask)", 1)
        return f"{head}mask=mask & (c < n - 1)){tail}"

    text = sources.TASK[: sources.TASK.index("def reference")] + 'reference = "seed"\nstress = False\n'
    (tmp_path / "task.py").write_text(text)
    (tmp_path / "kernel.py").write_text(shorter(sources.SEED))
    with GpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        evaluator.prepare()
        right = shorter(sources.RIGHT["one pass"])
        evaluation = evaluator.evaluate(Candidate(right), seed=1, known={})
        assert evaluation.verdict is Verdict.OK, evaluation.message
        assert evaluation.environment["certificate"] == "eager: passed"
        wrong = evaluator.evaluate(Candidate(right.replace("v * 2", "v * 3")), seed=1, known={})
        assert wrong.verdict is Verdict.WRONG
        full = evaluator.certify(right, seed=1)
        assert full.verdict is Verdict.OK, full
        assert {check.outcome for check in full.checks if " with " in check.what} == {"not run"}
        assert evaluator._backend._runner.respawns == 0


@pytest.mark.gpu
@needs_gpu
def test_faults_of_the_eager_process_harm_nobody_else(gpu, monkeypatch):
    monkeypatch.setattr(certify, "LIMITS", dataclasses.replace(certify.LIMITS, wall_s=12.0))
    certifier = gpu._backend._prepared()
    assert certifier.quick(sources.ILLEGAL, None, seed="s").verdict is Verdict.RUNTIME_ERROR
    assert certifier.quick(sources.ENDLESS, None, seed="s").verdict is Verdict.TIMEOUT
    assert certifier.quick(sources.RIGHT["one pass"], None, seed="s").verdict is Verdict.OK


# Reads one element beyond the last row, and uses it only where it is a number that is never there.
BEYOND = sources.source(
    """
v = tl.load(x + row + c, mask=mask, other=0.0)
beyond = tl.load(x + tl.num_programs(0).to(tl.int64) * n + 4096 + c)
total = tl.sum(v, 0) + tl.sum(tl.where(beyond == 12345.678, 1.0, 0.0), 0)
tl.store(o + row + c, v * 2 + total, mask=mask)
"""
)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.skipif(not find_tool(PROGRAM), reason="compute-sanitizer is not installed")
def test_reads_out_of_bounds_are_found_by_memcheck(gpu):
    certificate = gpu.certify(BEYOND, seed=1)
    assert certificate.verdict is Verdict.RUNTIME_ERROR, certificate
    assert certificate.message.startswith("memcheck: ")
    assert "Invalid __global__ read" in certificate.message
