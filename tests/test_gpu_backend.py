"""The evaluator that measures: without a GPU what it records and screens, with one the verdicts."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.core.errors import EvoError
from evo.core.records import Bar, Candidate, Certificate, Check, Timing, Verdict, score
from fitness import gpu_backend
from fitness.candidate import CompiledCandidate
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.gpu.runner import LaunchBundle, Report
from fitness.gpu_backend import _FACTS, GpuBackend, GpuEvaluator, SharedGpu
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import load_task, task_names
from tests import gpu_sources as sources

HERE = Path(__file__).parent
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90") as zygote:
        yield zygote


@pytest.fixture(scope="module")
def evaluators(zygote):
    """`evaluators(task)`: a prepared GpuEvaluator, kept for the module."""
    made = {}

    def get(name: str) -> GpuEvaluator:
        if name not in made:
            made[name] = GpuEvaluator(load_task(name), get_target("sm_90"), zygote=zygote)
            made[name].prepare()
        return made[name]

    yield get
    for evaluator in made.values():
        evaluator.close()


def variant(name: str) -> Candidate:
    return Candidate((HERE / "variants" / f"{name}.py").read_text())


def hack(name: str) -> Candidate:
    return Candidate((HERE / "hacks" / f"{name}.py").read_text())


# --- one GPU, several backends: no GPU is needed ---------------------------------------------------------------------

FACTS = {"uuid": "GPU-1", "capability": (9, 0), "name": "H200"}


class Runner:
    """Knows whether it measured the ceilings."""

    def __init__(self) -> None:
        self.measured, self.given = False, None

    @property
    def facts(self) -> Any:
        self.measured = True
        return FACTS

    def start(self, facts: Any) -> Any:
        self.given = facts
        return facts


def test_the_first_measures_and_others_get_what_it_measured() -> None:
    gpu = SharedGpu()
    runners = [Runner() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(gpu.start, runners)) == [FACTS] * 6  # type: ignore[arg-type]
    assert [r.measured for r in runners].count(True) == 1
    assert [r.given for r in runners].count(FACTS) == 5


def test_all_certificates_are_run_by_one_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Zygote:
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments)

        def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(gpu_backend, "Zygote", Zygote)
    gpu = SharedGpu()
    gpu.start(Runner())  # type: ignore[arg-type]
    assert gpu.eager() is gpu.eager()
    gpu.close()
    assert made == [("sm_90", ("eager",), "GPU-1"), "closed"]


def test_closing_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backend, "Zygote", lambda *_: pytest.fail("a zygote was started"))
    gpu = SharedGpu()
    gpu.start(Runner())  # type: ignore[arg-type]
    gpu.close()


# --- without a GPU ---------------------------------------------------------------------------------------------------


def test_every_case_is_recorded_and_compiled_at_its_full_size_and_no_other(zygote):
    task = load_task("softmax")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        compiled = evaluator._compile(task.seed_source)
        assert not isinstance(compiled, Stop)
        names = {case.name for case in task.cases}
        assert set(compiled.plans) == set(compiled.builds) == names
        assert {b["cubin"] for case in compiled.builds.values() for by in case for b in by} == set(compiled.cubins)
        assert not compiled.estimates  # only screening asks for them


def test_a_duplicate_is_told_before_the_rest_is_compiled(tmp_path):
    (tmp_path / "task.py").write_text(sources.TASK)
    (tmp_path / "kernel.py").write_text(sources.SEED)
    right = sources.RIGHT["one pass"]
    broken = right.replace(
        "\n    o = ", "\n    if x.shape[1] == 1003:\n        kernel[(1,)](x, x, 1, BLOCK=3)\n    o = "
    )
    assert broken != right
    with GpuEvaluator(load_task(tmp_path), get_target("sm_90")) as evaluator:
        known = {evaluator.plan_hash(right): "first"}
        assert evaluator.plan_hash(broken) in known  # it differs where nothing is timed
        assert evaluator.evaluate(Candidate(broken), seed=1, known=known).verdict is Verdict.DUPLICATE
        found = evaluator.evaluate(Candidate(broken), seed=1, known={})
        assert (found.verdict, found.stage) == (Verdict.COMPILE_ERROR, "compile")
        assert evaluator.plan_hash(broken) == ""  # now it is known to fail


def test_estimates_of_both_evaluators_agree(zygote):
    task, target = load_task("softmax"), get_target("sm_90")
    with GpuEvaluator(task, target, zygote=zygote) as gpu, CpuEvaluator(task, target, zygote=zygote) as cpu:
        estimates = cpu._estimates(task.seed_source)
        assert estimates
        assert gpu._estimates(task.seed_source) == estimates


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_prepare_says_what_is_missing(zygote):
    with (
        GpuEvaluator(load_task("softmax"), get_target("sm_90"), zygote=zygote) as evaluator,
        pytest.raises(EvoError, match="did not start"),
    ):
        evaluator.prepare()


GPU = {"name": "made up", **dict.fromkeys(_FACTS, 1.0)}
SEED = load_task("softmax").seed_source


class Reports:
    """A runner that took 0.25 s for each of the reports it gives."""

    def __init__(self, *reports: Report) -> None:
        self._reports = iter(reports)

    def evaluate(self, work: LaunchBundle, *, seed: str) -> Report:
        return replace(next(self._reports), seconds=0.25)

    def close(self) -> None:
        pass


class Certifies:
    """A certifier that says the same of everything."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def quick(self, source: str, work: LaunchBundle, *, seed: str) -> Certificate:
        return Certificate("", self._verdict, "as told")

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def compiled(zygote) -> CompiledCandidate:
    """Of the seed of softmax, which launches one kernel."""
    with GpuEvaluator(load_task("softmax"), get_target("sm_90"), zygote=zygote) as evaluator:
        return evaluator._compile(evaluator.task.seed_source)


def ok(ratio: float) -> Report:
    timing = Timing("square", (1.0,), (ratio,), ratio, (ratio, ratio), estimated=False)
    choices = {case.name: [0] for case in load_task("softmax").cases}
    return Report(Verdict.OK, "done", check=Check(1, "square", 0.1, 1.0), timings=(timing,), choices=choices)


def backend_of(*reports: Report, certifier: Verdict = Verdict.OK) -> Any:
    backend: Any = GpuBackend(load_task("softmax"))
    backend._runner, backend._certifier, backend._facts = Reports(*reports), Certifies(certifier), GPU
    return backend


def test_seconds_on_the_gpu_are_the_runners_and_certificates_apart(compiled):
    backend = backend_of(ok(1.0), ok(2.0), ok(1.5))
    assert backend.evaluate(SEED, compiled, "0").seconds == {"time": 0.25}
    certified = backend.evaluate(SEED, compiled, "1").seconds
    assert set(certified) == {"time", "certify"} and certified["time"] == 0.25
    assert set(backend.evaluate(SEED, compiled, "2").seconds) == {"time"}, "it is slower than a certified one"


def test_what_is_not_ok_says_what_it_took_too(compiled):
    wrong = backend_of(Report(Verdict.WRONG, "verify", "not equal"))
    with pytest.raises(Stop) as stop:
        wrong.evaluate(SEED, compiled, "0")
    assert pickle.loads(pickle.dumps(stop.value)).seconds == {"time": 0.25}
    with pytest.raises(Stop, match="run eagerly, as told") as stop:
        backend_of(ok(2.0), certifier=Verdict.WRONG).evaluate(SEED, compiled, "0")
    assert stop.value.stage == "certify" and stop.value.seconds["time"] == 0.25 and "certify" in stop.value.seconds


def test_what_the_gpu_was_not_used_for_is_waiting(zygote):
    task = load_task("softmax")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator._backend = backend_of(Report(Verdict.WRONG, "verify", "not equal"))
        seconds = evaluator.evaluate(Candidate(task.seed_source), seed=0, known={}).seconds
        assert seconds["time"] == 0.25 and seconds["wait"] >= 0 and "compile" in seconds


def test_a_first_look_on_a_gpu_asks_for_what_is_compiled_and_its_seconds_count(zygote):
    asked: list[LaunchBundle] = []

    class Looks(Reports):
        def look(self, bundle: LaunchBundle, *, seed: str) -> Report:
            asked.append(bundle)
            assert seed.startswith("look:")
            return replace(ok(0.5), seconds=0.5)

    task = load_task("softmax")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        backend: Any = GpuBackend(task)
        backend._runner = Looks(Report(Verdict.WRONG, "verify", "not equal"))
        evaluator._backend = backend
        source = Candidate(task.needed_seed + "\nNEW = 1\n")
        ended = evaluator.evaluate(source, seed=0, known={}, bar=Bar(1.0))
        tune = {c.name for c in task.cases if c.role == "tune"}
        assert ended.verdict is Verdict.SLOW and ended.seconds["time"] == 0.5
        assert set(asked[0].plans) == set(asked[0].builds) == tune
        passed = evaluator.evaluate(source, seed=0, known={}, bar=Bar(0.4))
        assert passed.verdict is Verdict.WRONG and passed.seconds["time"] == 0.75


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", task_names())
def test_seeds_are_ok_and_as_fast_as_themselves(zygote, name):
    with GpuEvaluator(load_task(name), get_target("sm_90"), zygote=zygote) as evaluator:
        evaluation = evaluator.prepare()
        fitness = score(evaluation)
        assert evaluation.verdict is Verdict.OK
        assert not evaluation.estimated
        assert fitness.speedup == pytest.approx(1, abs=0.02)
        assert evaluator.environment["copy_bytes_per_s"] > 0


@pytest.mark.gpu
@needs_gpu
def test_a_faster_variant_is_measured_faster_a_cheat_is_not_ok(evaluators):
    evaluator = evaluators("softmax")
    faster = evaluator.evaluate(variant("softmax__whole_row"), seed=1, known={})
    assert faster.verdict is Verdict.OK, faster.message
    assert score(faster).ci95[0] > 1
    assert faster.environment["gpu"]
    assert faster.seconds["time"] > 0 and faster.seconds["certify"] > 0 and faster.seconds["wait"] >= 0
    wrong = evaluator.evaluate(hack("skip_last_row"), seed=1, known={})
    assert wrong.verdict is Verdict.WRONG, wrong.message
    assert evaluator.screen([evaluator.task.seed_source]) == [pytest.approx(1)]


@pytest.mark.gpu
@needs_gpu
def test_the_winner_of_the_race_is_frozen(evaluators):
    evaluation = evaluators("softmax").evaluate(variant("softmax__autotuned"), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert evaluation.frozen_source.count("triton.Config(") == 1


@pytest.mark.gpu
@needs_gpu
def test_the_same_machine_code_is_a_duplicate(evaluators):
    evaluator = evaluators("softmax")
    first = evaluator.evaluate(variant("softmax__whole_row"), seed=1, known={})
    renamed = Candidate(variant("softmax__whole_row").source + "\nUNUSED = 1\n")
    again = evaluator.evaluate(renamed, seed=1, known={first.plan_hash: first.candidate})
    assert again.verdict is Verdict.DUPLICATE, again.message
    assert again.duplicate_of == first.candidate
