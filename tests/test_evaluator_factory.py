"""fitness.evaluator_factory."""

from __future__ import annotations

from contextlib import closing

from evo.core.records import Candidate, Timing, Verdict
from fitness.evaluator_factory import EvaluatorFactory
from fitness.frontend.target import get_target
from fitness.tasks.task import load_task

FACTS = {"uuid": "GPU-0", "capability": (9, 0), "name": "H200"}
AS_FAST = Timing("square", (1.0,), (1.0,), 1.0, (0.9, 1.1), estimated=False)


def test_tasks_side_by_side_are_judged_by_one_zygote() -> None:
    with closing(EvaluatorFactory(get_target("sm_90"), measured=False)) as factory:
        evaluators = [factory.open(load_task(name)) for name in ("vector_sin", "softmax")]
        first = [evaluator.prepare() for evaluator in evaluators]
        assert {e.verdict for e in first} == {Verdict.OK}
        evaluators[0].close()  # the other one goes on
        seed = Candidate(evaluators[1].task.seed_source)
        assert evaluators[1].evaluate(seed, seed=1, known={}).timings == first[1].timings
        evaluators[1].close()
