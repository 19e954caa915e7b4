"""The evaluator that measures: without a GPU what it records and screens, with one the verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evo.errors import EvoError
from evo.records import Candidate, Verdict
from fitness.compilation.target import get_target
from fitness.evaluator import CpuEvaluator
from fitness.gpu_evaluator import GpuEvaluator
from fitness.sandbox.zygote import Zygote
from fitness.score import score
from fitness.stages import Stop
from fitness.task import load_task, task_names

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


# --- without a GPU ---------------------------------------------------------------------------------------------------


def test_every_case_is_recorded_and_compiled_at_its_full_size_and_no_other(zygote):
    task = load_task("softmax")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        facts = evaluator._facts(task.seed_source)
        assert not isinstance(facts, Stop)
        names = {case.name for case in task.cases}
        assert set(facts.plans) == set(facts.builds) == names
        assert {b["cubin"] for case in facts.builds.values() for by in case for b in by} == set(facts.cubins)
        assert not facts.estimates  # only screening asks for them


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
