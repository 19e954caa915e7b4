"""Judges candidates on a machine without a GPU: executed by an interpreter, timed by a model of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evo.records import Candidate, Timing
from fitness import estimate as model
from fitness.calls import CPU
from fitness.jobs import Limits
from fitness.pipeline import Evaluator, Facts, Judged
from fitness.target import Target
from fitness.task import Task
from fitness.verify import verify
from fitness.zygote import Zygote


class CpuEvaluator(Evaluator):
    """Verifies at the cases' sizes for a CPU, estimates at the target's."""

    judging = "verify"

    def __init__(
        self,
        task: Task,
        target: Target,
        *,
        limits: Limits | None = None,
        use_gate: bool = True,
        zygote: Zygote | None = None,
    ) -> None:
        """`use_gate=False` is for testing that the later stages hold without the first; a `zygote` that is given is
        shared with others and not closed here.
        """
        super().__init__(task, target, limits, use_gate, zygote)

    def _recorded(self) -> list[str]:
        return list(self._calls.described())

    def _compiled(self) -> list[str]:
        return self._tune()

    def _stages(self) -> Sequence[Callable[[str, Facts, Path], None]]:
        return (self._gate, self._record, self._compile, self._screen, self._estimate)

    def _estimates(self, source: str, facts: Facts) -> dict[str, model.Estimate]:
        return facts.estimates

    def _judge_seed(self, seed: Candidate, facts: Facts) -> Judged:
        self._baseline = facts.estimates
        return self._judge(seed, facts, f"{seed.id}:0")

    def _judge(self, candidate: Candidate, facts: Facts, key: str) -> Judged:
        with self._scratch() as scratch:
            check = verify(
                self.task,
                {c.name: facts.plans[c.name + CPU] for c in self.task.cases},
                {c.name: facts.choices[c.name + CPU] for c in self.task.cases},
                source=candidate.source,
                constants=facts.constants,
                seed=key,
                zygote=self._zygote,
                scratch=scratch,
                limits=self.limits,
            )
        timings = tuple(self._timing(name, estimate) for name, estimate in facts.estimates.items())
        return Judged(check, timings, facts.choices)

    def _timing(self, case: str, estimate: model.Estimate) -> Timing:
        ratio = self._ratio(case, estimate)
        assert self._baseline is not None
        return Timing(
            case=case,
            samples_us=(estimate.total_us,),
            baseline_us=(self._baseline[case].total_us,),
            ratio=ratio,
            ci95=model.interval(ratio),
            estimated=True,
            terms=dict(estimate.terms),
        )
