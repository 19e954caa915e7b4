"""Cheats and faults that only a GPU shows: races, deadlocks, memory beyond the guard zones, caches that stay warm.

As in tests/hacks, each file names its task, verdict and stage.  Where the verdict is ok the trick gains nothing: it is
no faster than its `twin`, the same kernel without it (in tests/hacks_gpu/twins), or no more than its honest `gain`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evo.core.records import Candidate, Verdict, score
from fitness.frontend.target import get_target
from fitness.gpu_backend import GpuEvaluator
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import load_task
from tests.test_hacks import CORPUS, header

HERE = Path(__file__).parent
GPU_CORPUS = sorted((HERE / "hacks_gpu").glob("*.py"))
# Of the corpus for every machine, what gets past the gate (the rest never reaches a GPU) and is wrong there.
RECORDED = [p for p in CORPUS if header(p).get("stage") != "gate" and header(p).get("measured") != "ok"]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.fixture(scope="module")
def evaluators():
    """`evaluators(task)`: a prepared GpuEvaluator, kept for the module."""
    made: dict[str, GpuEvaluator] = {}
    with Zygote("sm_90") as zygote:

        def get(name: str) -> GpuEvaluator:
            if name not in made:
                limits = Limits(wall_s=10.0)
                made[name] = GpuEvaluator(load_task(name), get_target("sm_90"), limits=limits, zygote=zygote)
                made[name].prepare()
            return made[name]

        yield get
        for evaluator in made.values():
            evaluator.close()


def judge(evaluators, path: Path):
    candidate = Candidate(path.read_text(encoding="utf-8", errors="surrogateescape"))
    return evaluators(header(path)["task"]).evaluate(candidate, seed=1, known={})


@pytest.mark.parametrize("path", GPU_CORPUS, ids=lambda p: p.stem)
def test_each_cheat_gets_its_verdict(evaluators, path):
    evaluation = judge(evaluators, path)
    assert evaluation.verdict.value in header(path)["verdict"].split("|"), evaluation.message
    assert evaluation.stage in header(path)["stage"].split("|"), evaluation.message
    if evaluation.verdict is Verdict.OK:
        twin = judge_twin(evaluators, path)
        most = float(header(path).get("gain", 1.03)) * score(twin).speedup
        assert score(evaluation).speedup < most, (score(evaluation), score(twin))


def judge_twin(evaluators, path: Path):
    twin = Candidate((HERE / "hacks_gpu" / "twins" / f"{header(path)['twin']}.py").read_text())
    evaluation = evaluators(header(path)["task"]).evaluate(twin, seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    return evaluation


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_no_cheat_of_the_common_corpus_is_ok_on_a_gpu(evaluators, path):
    evaluation = judge(evaluators, path)
    assert evaluation.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE), evaluation.message
