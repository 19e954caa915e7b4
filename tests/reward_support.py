"""A reward and an evaluator that know their answers, for tests of what trainers and engines are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from evo.core.records import Candidate, Evaluation, Verdict
from evo.rewards import Reward
from tests.engine_support import failed_trial, ok_trial


class Rewarded:
    """A reward that notes its texts: `right` gets 1, `broken` is not known, and all others get 0."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, completions: Sequence[str]) -> list[Reward]:
        self.texts += completions
        return [self._of(text) for text in completions]

    def _of(self, text: str) -> Reward:
        if text == "broken":
            return Reward(None, Verdict.INFRASTRUCTURE, None, False, None, None, reason="died", stage="verify")
        if text == "right":
            return Reward(1.0, Verdict.OK, 2.0, True, 2.0, 1.0)
        return Reward(0.0, Verdict.REJECTED, None, False, 0.0, 0.0, reason="no \x1b", stage="gate")


class Evaluated:
    """Evaluates as a stored trial was."""

    def __init__(self, *known: Evaluation) -> None:
        self.known = {each.candidate: each for each in known}

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
        return (self.known[Candidate(source).id] for source in sources)


TRIALS = (
    ok_trial(1, 2.5),
    failed_trial(2, Verdict.WRONG, "wrong \x1b result"),
    failed_trial(3, Verdict.INFRASTRUCTURE, "died"),
)


EVALUATED = Evaluated(*(trial.evaluation for trial in TRIALS))
