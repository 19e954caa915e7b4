"""Training data for language models out of runs: answers with what became of them.

A speedup here is over the task's seed kernel, as everywhere; TritonRL's is over PyTorch.  Rewards and advantages:

- `autotriton` (AutoTriton, arXiv 2507.05687): 1 where the rules are kept and the outputs are right, else 0.
- `tritonrl` (TritonRL, arXiv 2510.17891): two rewards, each for its own tokens.  The code's tokens get r_correct = syntax
  x rules x compiled x correct, the plan's get r_speed = r_correct x speedup; in the loss the plan's weigh ALPHA.
- The advantage of an answer is (r - mean) / (std + EPSILON) over its group, std with n - 1, and 0 in a group of one:
  as TRL's GRPOTrainer computes it.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.rows import Row
from evo.records import STAGES, Verdict
from evo.store import RunReader

ALPHA = 0.1  # TritonRL's choice
EPSILON = 1e-4  # TRL's; verl has 1e-6

# A duplicate does the work of an earlier candidate that is ok, and is as fast: `t` is that twin.
_ANSWERS = """
    SELECT c.call, c.prompt_hash, c.model, c.operator, c.trial, c.request, c.answer, c.reasoning, e.verdict, e.stage,
           COALESCE(e.speedup, t.speedup), COALESCE(e.ci_low, t.ci_low), COALESCE(e.ci_high, t.ci_high),
           COALESCE(e.estimated, t.estimated),
           (SELECT MAX(pe.speedup) FROM json_each(p.parents) j JOIN evaluations pe ON pe.trial = j.value)
    FROM llm_calls c JOIN proposals p USING (trial) JOIN evaluations e USING (trial)
    LEFT JOIN proposals tp ON tp.candidate = json_extract(e.evaluation, '$.duplicate_of')
    LEFT JOIN evaluations t ON t.trial = tp.trial
    WHERE c.answer IS NOT NULL AND e.verdict != 'infrastructure' ORDER BY c.call
"""
_UNJUDGED = """
    SELECT COUNT(*) FROM llm_calls c LEFT JOIN evaluations e USING (trial)
    WHERE c.answer IS NOT NULL AND (e.verdict IS NULL OR e.verdict = 'infrastructure')
"""


@dataclass(frozen=True)
class Answer:
    """A model's answer with the verdict on what it became.  Speedups are None unless correct."""

    call: int
    prompt_hash: str
    model: str
    operator: str
    trial: int
    request: str
    text: str
    reasoning: str | None
    verdict: Verdict
    stage: str
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    estimated: bool | None
    parent_speedup: float | None

    @property
    def syntax(self) -> bool:
        """The gate's one verdict about the form is that of Python's parser."""
        return not (self.stage == "gate" and self.verdict is Verdict.COMPILE_ERROR)

    @property
    def rules(self) -> bool:
        return self.syntax and self.verdict is not Verdict.REJECTED

    @property
    def compiled(self) -> bool:
        return STAGES.index(self.stage) > STAGES.index("compile")

    @property
    def correct(self) -> bool:
        return self.verdict in (Verdict.OK, Verdict.DUPLICATE)

    @property
    def gained(self) -> bool:
        """Surely faster than the seed kernel, and faster than every parent the model was shown."""
        if self.verdict is not Verdict.OK or self.speedup is None or self.ci_low is None:
            return False
        return self.ci_low > 1 and self.speedup > (self.parent_speedup or 0.0)

    def rewards(self) -> dict[str, float]:
        correct = float(self.syntax and self.rules and self.compiled and self.correct)
        return {
            "autotriton": float(self.rules and self.correct),
            "tritonrl_plan": correct * (self.speedup or 0.0),
            "tritonrl_code": correct,
        }


def answers(run: RunReader) -> Iterator[Answer]:
    """Answers with a verdict; those that the evaluator itself failed on have none."""
    for row in run.rows(_ANSWERS):
        *first, verdict, stage, speedup, low, high, estimated, parent = row
        flag = None if estimated is None else bool(estimated)
        yield Answer(*first, Verdict(verdict), stage, speedup, low, high, flag, parent)


def unjudged(run: RunReader) -> int:
    """Answers without a verdict: pending, never turned into a trial, or failed by the evaluator itself."""
    return int(next(run.rows(_UNJUDGED))[0])
