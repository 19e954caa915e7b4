"""The eager tier: processes, protocol and judgement for real without a GPU, with kernels on one."""

from __future__ import annotations

import dataclasses
import io
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from rich.console import Console

from analysis.report import Bounds, write_report
from analysis.rows import evaluations
from analysis.schema import EXPORT
from evo.cli.run_text import show_trial
from evo.core.errors import TaskError
from evo.core.records import Candidate, Evaluation, Fitness, Timing, Verdict, evaluation_from_json, evaluation_to_json
from evo.storage.result import speedup_text
from evo.storage.store import RunReader
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.eager import bench, host
from fitness.eager.bench import Comparison
from fitness.eager.channel import Answerer, Asker, Ended, make_pipes, mark_ended
from fitness.eager.digest import COLUMNS, digests
from fitness.eager.host import Host, builds_of
from fitness.eager.serve import Watcher
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.gpu.runner import Report
from fitness.gpu_backend import EagerJudge, GpuBackend, GpuEvaluator, gpu_backend, with_floor
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.score import score
from fitness.tasks.task import Task, load_task
from fitness.verify.oracle import VARIANTS
from tests import gpu_sources as sources
from tests.engine_support import create, ok_trial
from tests.test_hacks import header

HERE = Path(__file__).parent / "hacks_eager"
CHEATS = sorted(HERE.glob("*.py"))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

# Candidates of plain PyTorch: they need no GPU.
HOST = "import torch\n\ndef shifted(x):\n    {body}\n"
RIGHT = HOST.format(body="return x * 2 + x.sum(1, keepdim=True)")
# The host decides by a value: what no recorder can know.
DECIDES = HOST.format(body="half = x if x[0, 0].item() > 0 else x.clone(); return half * 2 + half.sum(1, keepdim=True)")


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    """At sizes for a CPU; operators may do the work."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.py").write_text(sources.TASK + "\neager = True\nallow_delegation = True\nmin_own_share = 0\n")
    (folder / "kernel.py").write_text(RIGHT)
    loaded = load_task(folder)
    return dataclasses.replace(loaded, cases=tuple(case.on_cpu() for case in loaded.cases))


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90", ("serve",)) as zygote:
        yield zygote


class CpuRunner:
    """`fitness.gpu.runner.Runner` as far as a Host needs it, without its process."""

    facts = MappingProxyType({"capability": (9, 0), "uuid": "none", "name": "NVIDIA H200", "multiprocessors": 132})

    def __init__(self, task: Task, wall_s: float = 60.0) -> None:
        self.task, self.wall_s = task, wall_s

    def eager(self, folder, *, seed, wall_s):
        assert wall_s == host.LIMITS.wall_s
        comparison = Comparison(self.task, torch.device("cpu"), folder, self.wall_s, lambda case, us: None)
        try:
            return comparison.report(seed)
        except Stop as stop:
            return Report(stop.verdict, stop.stage, stop.message)

    def idle(self):
        return nullcontext()

    def close(self):
        pass


@pytest.fixture
def compare(task, zygote, monkeypatch):
    """`compare(source)`: the report on it."""
    monkeypatch.setattr(host, "Zygote", lambda *_: zygote)  # starting one takes seconds
    monkeypatch.setattr(host, "DEVICE", "cpu")
    monkeypatch.setattr(host, "LIMITS", Limits(wall_s=100.0, memory_bytes=4 << 30))
    monkeypatch.setattr(bench, "PAIRS", 6)
    monkeypatch.setattr(bench, "LOOKED_AT", 4)

    def get(source: str, task: Task = task, wall_s: float = 60.0) -> Report:
        report, layers = Host(task, CpuRunner(task, wall_s), wall_s=wall_s).compare(source, key="s")
        assert report.compiled == ()  # no kernel of Triton's without a GPU
        assert "seccomp" in layers
        return report

    return get


# --- one comparison --------------------------------------------------------------------------------------------------


def test_host_code_that_needs_values_is_verified_and_timed(compare, task):
    report = compare(DECIDES)
    assert report.verdict is Verdict.OK, report.message
    assert report.check is not None and 0 < report.check.max_error < 1
    # Three fresh inputs a case and five stress variants; 32 calls in each of the 4 samples of two cases looked at.
    assert report.check.cases == 3 * 3 + len(VARIANTS) - 1 + 2 * 4 * 32
    assert [timing.case for timing in report.timings] == ["small", "large"]
    for timing in report.timings:
        assert len(timing.samples_us) == len(timing.baseline_us) == 6
        assert timing.terms == {"calls_per_sample": 32.0, "pairs": 6.0}


LATER = """
import threading, time
def later(x, y):
    time.sleep(0.2)
    y.copy_(x * 2 + x.sum(1, keepdim=True))
def shifted(x):
    y = torch.zeros_like(x)
    threading.Thread(target=later, args=(x, y)).start()
    return y
"""
KEEPS = """
kept = {}
def shifted(x):
    y = kept.setdefault(x.shape, torch.empty_like(x))
    return y.copy_(x * 2 + x.sum(1, keepdim=True))
"""
STOPS = """
calls = []
def shifted(x):
    calls.append(0)
    y = x * 2 + x.sum(1, keepdim=True)
    return y if len(calls) < 60 else torch.zeros_like(x)
"""
POINTER = """
kept = {}
def shifted(x):
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = x * 2 + x.sum(1, keepdim=True)
    return kept[x.data_ptr()].clone()
"""
FORGES = """
import fitness.eager.serve as serve
serve.digests = lambda tensors: ["0" * 32 for _ in tensors]
def shifted(x):
    return x * 2 + x.sum(1, keepdim=True)
"""
GIVES = """
import fitness.eager.serve as serve
serve._Rounds.give = lambda self, name: {"calls": [CALL for _ in self._results]}
def shifted(x):
    return x * 2 + x.sum(1, keepdim=True)
"""
VALUE = GIVES.replace("CALL", '{"structure": "tensor", "outputs": [{"value": 1, "strides": []}], "modified": []}')
FAILS = GIVES.replace("CALL", '{"error": {"verdict": "wrong", "message": "", "line": float("inf")}}')
MOODY = """
import random
def shifted(x):
    return x * 2 + x.sum(1, keepdim=True) + random.random() * 1e-7 * x.abs().sum(1, keepdim=True)
"""


@pytest.mark.parametrize(
    ("source", "verdict", "message"),
    [
        (HOST.format(body="return x * 2"), Verdict.WRONG, "output is wrong"),
        (HOST.format(body="return torch.cat([x[:-1] * 2 + x[:-1].sum(1, keepdim=True), x[-1:]])"), Verdict.WRONG, ""),
        (HOST.format(body="y = x * 2 + x.sum(1, keepdim=True); x.zero_(); return y"), Verdict.WRONG, "was modified"),
        (HOST.format(body="return [x]"), Verdict.WRONG, "must return 'tensor'"),
        (HOST.format(body="return x.tolist()"), Verdict.WRONG, "expected tensors"),
        (HOST.format(body="raise ValueError('no')"), Verdict.RUNTIME_ERROR, "line 4: ValueError: no"),
        (HOST.format(body="return torch.empty(1 << 40).sum()"), Verdict.RUNTIME_ERROR, "allocate"),
        ("import nowhere\n" + RIGHT, Verdict.COMPILE_ERROR, "importing the candidate failed"),
        ("import os\n" + HOST.format(body="os._exit(0)"), Verdict.RUNTIME_ERROR, "no valid result"),
        ("import os\n" + HOST.format(body="os.abort()"), Verdict.RUNTIME_ERROR, "died by SIGABRT"),
        ("import torch" + LATER, Verdict.WRONG, ""),
        ("import torch" + KEEPS, Verdict.WRONG, "output is wrong"),
        ("import torch" + STOPS, Verdict.WRONG, "output is wrong"),
        ("import torch" + POINTER, Verdict.WRONG, ""),  # of an input that lay there before, or that lies there now
        ("import torch" + FORGES, Verdict.WRONG, "are not those it had when it said"),
        ("import torch" + VALUE, Verdict.RUNTIME_ERROR, "output 0 is no tensor: {'strides': [], 'value': 1}"),
        ("import torch" + FAILS, Verdict.RUNTIME_ERROR, "a failure that makes no sense"),
        ("import torch" + MOODY, Verdict.WRONG, "calls on the same inputs differ"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(compare, source, verdict, message):
    report = compare(source)
    assert (report.verdict, message in report.message) == (verdict, True), report
    assert not report.timings


def test_a_call_that_does_not_end_is_ended(compare):
    report = compare(HOST.format(body="while True: pass"), wall_s=3.0)
    assert report.verdict is Verdict.TIMEOUT, report
    assert "not finished after 3 s" in report.message


def test_operators_are_noted_where_the_task_does_not_allow_them(compare, task):
    report = compare(RIGHT, dataclasses.replace(task, allow_delegation=False))
    assert report.verdict is Verdict.REJECTED
    assert "work delegated to aten.add.Tensor (line 4), aten.mul.Tensor (line 4), aten.sum" in report.message


LATER = """
from functools import reduce
from operator import add, mul
import torch

CALLS = [0]

def shifted(x):
    CALLS.append(0)
    if len(CALLS) > 30:  # when those of verification are over
        return reduce(add, (reduce(mul, (x, 2.0)), x.sum(1, keepdim=True)))
    return torch.tensor([[2 * v + sum(row) for v in row] for row in x.tolist()], dtype=x.dtype)
"""


def test_operators_are_noted_between_timed_calls_too(compare, task):
    report = compare(LATER, dataclasses.replace(task, allow_delegation=False))
    assert report.verdict is Verdict.REJECTED and "work delegated to" in report.message, report


def test_copies_views_and_values_are_no_work_of_operators():
    x = torch.randn(4, 4)
    with Watcher() as watcher:
        y = torch.zeros_like(x).copy_(x.t()).contiguous().to(torch.float16)
        assert y[0, 0].item() == x.half()[0, 0].tolist()
        torch.empty(int(x.shape[0]), device=x.device).fill_(1.0)
    assert watcher.found == []
    with Watcher() as watcher:
        x[x > 0]
        torch.rand(3)
    assert [name.partition(" ")[0] for name in watcher.found] == [
        "aten.gt.Scalar",
        "aten.index.Tensor",
        "aten.rand.default",
    ]


def test_inputs_are_never_written_through_what_a_process_left_in_their_place(compare, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    plant = f"import os\nfor n in range(1, 9): os.symlink('{victim}', f'{{n}}.in.0')\n"
    assert compare(plant + RIGHT).verdict is Verdict.OK
    assert victim.read_bytes() == b"mine"
    block = "import os\nfor n in range(1, 9): os.mkdir(f'{n}.in.0')\n"
    assert "in the way of its own inputs" in compare(block + RIGHT).message


def test_where_the_seeds_process_fails_nothing_is_held_against_a_candidate(compare, task):
    broken = dataclasses.replace(task, seed_source=HOST.format(body="raise OSError('no such device')"))
    report = compare(RIGHT, broken)
    assert report.verdict is Verdict.INFRASTRUCTURE
    assert "the seed kernel's process: line 4: OSError: no such device" in report.message


# --- pipes -----------------------------------------------------------------------------------------------------------


def test_questions_and_answers_of_any_length_go_through_pipes(tmp_path):
    make_pipes(tmp_path)

    def serve():
        line = Answerer(tmp_path)
        for question in line.questions():
            line.answer({"back": question["text"]})

    thread = threading.Thread(target=serve)
    thread.start()
    with Asker(tmp_path) as asker:
        asker.begin(10)
        for text in ("", "x" * 300_000):
            answer, seconds = asker.ask({"text": text}, 10)
            assert answer == {"back": text} and seconds > 0
    thread.join(10)
    assert not thread.is_alive()


def test_a_process_that_is_gone_or_talks_nonsense_is_noticed(tmp_path):
    (tmp_path / "gone").mkdir()
    make_pipes(tmp_path / "gone")
    with Asker(tmp_path / "gone") as asker:
        with pytest.raises(TimeoutError):
            asker.begin(0.01)
        mark_ended(tmp_path / "gone")
        with pytest.raises(Ended):
            asker.begin(10)
    (tmp_path / "babbles").mkdir()
    make_pipes(tmp_path / "babbles")
    with Asker(tmp_path / "babbles") as asker:
        answers = os.open(tmp_path / "babbles" / "answer.pipe", os.O_WRONLY)
        questions = os.open(tmp_path / "babbles" / "ask.pipe", os.O_RDONLY | os.O_NONBLOCK)
        os.write(answers, b"{}\nnonsense\n")
        asker.begin(10)
        with pytest.raises(Ended):
            asker.ask({}, 10)
        os.close(answers)
        with pytest.raises(Ended):
            asker.ask({}, 10)
        os.close(questions)


def test_what_lies_in_the_place_of_a_pipe_is_the_process_own_fault(tmp_path, task):
    (tmp_path / bench.OWN / "answer.pipe").mkdir(parents=True)
    with Asker(tmp_path / bench.OWN) as asker, pytest.raises(Ended):
        asker.begin(10)
    (tmp_path / bench.OWN / "answer.pipe").rmdir()
    comparison = Comparison(task, torch.device("cpu"), tmp_path, 10.0, lambda case, us: None)
    with pytest.raises(Stop, match="it cannot be asked") as stop:
        comparison.report("s")
    assert stop.value.verdict is Verdict.RUNTIME_ERROR


def test_a_digest_is_of_every_bit_and_of_nothing_else():
    for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn, torch.int64):
        x = torch.randint(0, 2, (37, 2 * COLUMNS // 37 * 3)).to(dtype)
        y = x.clone()
        y[36, 5] = 1 - int(x[36, 5])
        first, same, other, turned = digests([x, x.t().contiguous().t(), y, x.t().contiguous().view(x.shape)])
        assert first == same and len({first, other, turned}) == 3
    assert digests([]) == []
    assert digests([torch.tensor(0.0)]) != digests([torch.tensor(-0.0)])
    assert len(digests([torch.empty(0)])[0]) == 32


# --- what is made of it ----------------------------------------------------------------------------------------------

BUILD = {"kernel": "k", "registers": 32, "spill_bytes": 0, "shared_bytes": 1024, "num_warps": 4, "sass_hash": "a"}


def test_builds_of_an_untrusted_process_are_checked():
    target = get_target("sm_90")
    (build,) = builds_of([BUILD, BUILD], target)
    assert (build.registers, build.num_warps) == (32, 4) and 0 < build.occupancy <= 1
    for name, value in [
        ("registers", -1),
        ("num_warps", 0),
        ("num_warps", 1 << 20),
        ("registers", "x"),
        ("spill_bytes", None),
        ("spill_bytes", 10**30),
        ("shared_bytes", float("inf")),
    ]:
        with pytest.raises(Stop, match="makes no sense"):
            builds_of([{**BUILD, name: value}], target)
    with pytest.raises(Stop, match="makes no sense"):
        builds_of([{}], target)


def timing(own: float, seed: float, ci: tuple[float, float] | None = None) -> Timing:
    ratio = seed / own
    return Timing("a", (own,) * 12, (seed,) * 12, ratio, ci or (ratio, ratio), False)


def test_a_difference_counts_beyond_what_two_processes_of_the_seed_differ_by():
    alone = timing(100.0, 101.0, (0.95, 1.06))
    assert with_floor(timing(75.0, 101.0), alone).terms == {"noise_floor": 1.4, "counts": 0.0}
    assert with_floor(timing(70.0, 101.0), alone).terms["counts"] == 1.0
    loud = timing(100.0, 101.0, (0.6, 1.1))
    assert with_floor(timing(70.0, 101.0), loud).terms == {"noise_floor": 1 / 0.6, "counts": 0.0}
    with pytest.raises(Stop, match="beside this candidate") as caught:
        with_floor(timing(90.0, 180.0), alone)
    assert caught.value.verdict is Verdict.INFRASTRUCTURE


def test_the_tier_is_the_tasks(task, compare, monkeypatch):
    assert type(gpu_backend(dataclasses.replace(task, eager=False))) is GpuBackend
    backend = gpu_backend(task)
    assert type(backend) is EagerJudge
    backend._runner = CpuRunner(task)
    report = dataclasses.replace(compare(RIGHT), compiled=(BUILD,), seconds=2.0)
    monkeypatch.setattr(Host, "compare", lambda self, source, key: (report, ("seccomp",)))
    backend.prepare(RIGHT, CompiledCandidate())
    result = backend.evaluate(RIGHT, CompiledCandidate(), "k")
    none = dataclasses.replace(report, compiled=())
    monkeypatch.setattr(Host, "compare", lambda self, source, key: (none, ("seccomp",)))
    with pytest.raises(Stop, match="launches no Triton kernel") as caught:
        backend.evaluate(RIGHT, CompiledCandidate(), "k")
    assert caught.value.seconds == result.seconds == {"time": 2.0}
    backend.close()
    assert result.eager and result.builds == builds_of([BUILD], get_target("sm_90"))
    evaluation = Evaluation(
        "id", Verdict.OK, "done", builds=result.builds, check=result.check, timings=result.timings, eager=result.eager
    )
    fitness = score(evaluation_from_json(evaluation_to_json(evaluation)))
    assert fitness is not None and fitness.kind == "eager"
    assert speedup_text(fitness).endswith("] eager")
    assert not speedup_text(Fitness(2.0, (1.9, 2.1), {}, False)).endswith("eager")


def test_store_terminal_export_and_report_keep_the_tier(tmp_path):
    pair = timing(50.0, 100.0, (1.9, 2.1))
    trials = []
    for made in (ok_trial(0, operator="seed"), ok_trial(1, parents=(0,))):
        evaluation = dataclasses.replace(made.evaluation, timings=(pair,), eager=True)
        trials.append(dataclasses.replace(made, evaluation=evaluation, fitness=score(evaluation)))
    with create(tmp_path / "run") as store:
        for trial in trials:
            store.proposed(trial.proposal)
            store.finished(trial)
    console = Console(file=io.StringIO(), width=200)
    with RunReader(tmp_path / "run") as run:
        assert list(run.trials()) == trials
        show_trial(run, 0, console)
        names = [column.name for column in EXPORT["evaluations"].columns][1:]
        row = dict(zip(names, next(evaluations(run)), strict=True))
    assert "speedup: 2.00x [1.90, 2.10] eager" in console.file.getvalue()
    assert "2.00x [1.90, 2.10] eager" in console.file.getvalue().partition("case a")[2]
    assert row["eager"] is True and row["estimated"] is False
    write_report([tmp_path / "run"], tmp_path / "report.html", [Bounds()])
    page = (tmp_path / "report.html").read_text()
    assert "Best speedup so far (eager)" in page and "is of a weaker tier" in page
    assert ">measured<" not in page and ">estimated<" not in page


def test_candidates_of_such_a_task_are_not_recorded_where_a_gpu_measures(tmp_path):
    task, target = load_task(HERE / "ragged"), get_target("sm_90")
    with Zygote("sm_90", ("record", "compile", "trace")) as zygote:
        measured = FrontEnd(task, target, measured=True, zygote=zygote)
        facts = measured.collect(task.seed_source)
        assert not facts.plans and list(facts.seconds) == ["gate"]
        with pytest.raises(Stop) as caught:  # the gate is asked all the same
            measured.collect((HERE / "exits.py").read_text())
        assert caught.value.stage == "gate"
        estimated = FrontEnd(task, target, measured=False, zygote=zygote)
        with pytest.raises(Stop) as caught:
            estimated.collect(task.seed_source)
        assert (caught.value.verdict, caught.value.stage) == (Verdict.UNSUPPORTED, "record")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('reference = "seed"', "eager = True needs a reference that is a function"),
        ("allow_delegation = True", "set min_own_share = 0"),
        ("eager = 1", "eager must be True or False"),
    ],
)
def test_what_only_a_plan_can_show_is_not_asked_of_an_eager_task(tmp_path, change, message):
    (tmp_path / "task.py").write_text((HERE / "ragged" / "task.py").read_text() + f"\n{change}\n")
    (tmp_path / "kernel.py").write_text((HERE / "ragged" / "kernel.py").read_text())
    with pytest.raises(TaskError, match=message):
        load_task(tmp_path)


# --- on a GPU --------------------------------------------------------------------------------------------------------

ONE_PASS = (HERE / "ragged" / "kernel.py").read_text().replace("AGAIN=16", "AGAIN=1")


@pytest.fixture(scope="module")
def gpu():
    """A prepared evaluator of the task whose grid is on the device."""
    with GpuEvaluator(load_task(HERE / "ragged"), get_target("sm_90"), limits=Limits(wall_s=15.0)) as evaluator:
        seed = evaluator.prepare()
        assert seed.eager and seed.verdict is Verdict.OK
        yield evaluator


@pytest.mark.gpu
@needs_gpu
def test_a_grid_that_lies_on_the_device_is_right(gpu):
    evaluation = gpu.evaluate(Candidate(ONE_PASS), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert evaluation.eager and "seccomp" in evaluation.environment["sandbox"]
    assert evaluation.builds and all(build.registers > 0 for build in evaluation.builds)
    fitness = score(evaluation)
    assert fitness is not None and fitness.kind == "eager"
    print({t.case: (t.ratio, t.ci95, dict(t.terms)) for t in evaluation.timings})
    assert {t.case for t in evaluation.timings} == {"small", "large"}


@pytest.mark.gpu
@needs_gpu
def test_the_seed_is_no_faster_than_itself(gpu):
    evaluation = gpu.evaluate(Candidate(gpu.task.seed_source), seed=2, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    print({t.case: (t.ratio, t.ci95, dict(t.terms)) for t in evaluation.timings})
    assert not any(t.terms["counts"] for t in evaluation.timings)


@pytest.mark.gpu
@needs_gpu
def test_a_certificate_without_a_plan_has_no_sanitizers(gpu):
    certificate = gpu.certify(ONE_PASS, seed=1)
    assert certificate.verdict is Verdict.OK, certificate
    found = {check.what: check.outcome for check in certificate.checks}
    assert found["eager: large"] == "passed" and found["memcheck"] == found["racecheck"] == "not run"


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("path", CHEATS, ids=lambda p: p.stem)
def test_each_cheat_gets_its_verdict(gpu, path):
    """And is not ok where the gate is not asked: what it lets through tomorrow must not be able to hide."""
    candidate, expected = Candidate(path.read_text()), header(path)
    evaluation = gpu.evaluate(candidate, seed=1, known={})
    assert (evaluation.verdict.value, evaluation.stage) == (expected["verdict"], expected["stage"]), evaluation.message
    if evaluation.stage == "gate":
        with pytest.raises(Stop) as caught:
            gpu._backend.evaluate(candidate.source, CompiledCandidate(), "ungated")
        print(path.stem, caught.value.verdict, caught.value.message)
        assert caught.value.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE), caught.value.message
