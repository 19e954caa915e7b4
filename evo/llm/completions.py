"""Makes the completion of a row of training data: a text that yields exactly the source that was evaluated.

An answer's parameters may be tuned before it is evaluated (`evo/search/scheduler.py`).  The store has the answer's
text, the source in it, and the evaluated source.  If the two differ, the evaluated source replaces the code in the
text, as a whole file or as search/replace blocks, whichever the model gave.  The new text is read again, and must
yield the evaluated source to be a completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evo.core.records import OperatorRef, Trial, candidate_id
from evo.storage.queries import RunReader
from evo.storage.store import Spans
from operators.base import Draft, Parent
from operators.llm.base import LlmOperator, Unreadable
from operators.llm.edits import has_edits, write_edits

PARENTS = 256  # sources kept in memory
Operators = Mapping[str, LlmOperator]

# Why an answer has no completion.
UNKNOWN_OPERATOR = "left out: their operator is not known here, so what their text yields cannot be found out"
UNEXPLAINED = "left out: their text does not yield the source that was judged, and the run does not say why"
NO_FORM = "left out: tuned before they were judged, and the tuned source cannot be written in the form of the answer"


@dataclass(frozen=True)
class Completion:
    """A text with its spans; `tuned`: its code has other parameters than the model wrote, as it was evaluated."""

    text: str
    spans: Spans
    tuned: bool


@dataclass(frozen=True)
class JudgedSource:
    """What was evaluated of an answer: `source`, made from `text` about `parents`.

    `itself`: the verdict is on the text itself, which holds no new source.  `tuned`: the run says that parameters were
    tuned in between; `answered`: from which source, if the run has it.  `spans`: the places of plan and code in the
    text.
    """

    operator: str  # with its model
    text: str
    spans: Spans
    parents: tuple[int, ...]
    source: str
    itself: bool
    tuned: bool
    answered: str | None = None


class Completions:
    """Makes completions from the answers in one run."""

    def __init__(self, reader: RunReader, operators: Operators) -> None:
        """operators: those that read answers, by name."""
        self._operators = operators
        self._reader = reader
        self._parent = lru_cache(PARENTS)(self._read_parent)

    def of(self, judged: JudgedSource) -> Completion | str:
        """Returns the completion, or the reason why it does not exist."""
        as_answered = Completion(judged.text, judged.spans, tuned=False)
        if judged.itself:
            return as_answered
        operator = self._operators.get(OperatorRef.parse(judged.operator).name)
        if operator is None:
            return UNKNOWN_OPERATOR
        parents = [self._parent(index) for index in judged.parents]
        wanted = candidate_id(judged.source)
        found = operator.read(judged.text, parents)
        if _yields(found, wanted):
            return as_answered
        if not judged.tuned or (judged.answered is not None and not _yields(found, candidate_id(judged.answered))):
            return UNEXPLAINED
        text = _with_judged(judged, parents)
        draft = operator.read(text, parents) if text is not None else None
        if text is None or not isinstance(draft, Draft) or not _yields(draft, wanted):
            return NO_FORM
        return Completion(text, draft.spans, tuned=True)

    def _read_parent(self, index: int) -> Parent:
        """Returns a parent as the answer was read with it: only its source counts there."""
        trial = self._reader.trial(index)
        proposal = trial.proposal if isinstance(trial, Trial) else trial
        return Parent(index, proposal.candidate.source, speedup=1.0)


def spans_from_json(text: str | None) -> dict[str, tuple[int, int]]:
    return {name: (start, end) for name, (start, end) in json.loads(text or "{}").items()}


def _yields(draft: Draft | Unreadable, wanted: str) -> bool:
    return isinstance(draft, Draft) and candidate_id(draft.source) == wanted


def _with_judged(judged: JudgedSource, parents: Sequence[Parent]) -> str | None:
    """Returns the text with the evaluated source as its code: edits of the first parent if it has any, else a file."""
    if "code" not in judged.spans:
        return None
    start, end = judged.spans["code"]
    code: str | None = judged.source.rstrip("\n") + "\n"
    if has_edits(judged.text[start:end]):
        code = write_edits(parents[0].source, judged.source) if parents else None
    return None if code is None else judged.text[:start] + code + judged.text[end:]
