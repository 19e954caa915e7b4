"""Makes the decisions of a run again, offline, from its store: questions, proposals, and what answers became.

Prompts are compared if the run is of this version of evo's code: another one may write them otherwise.

A decision follows from the trials proposed and finished before it, and from the questions in flight.  The store has
these, so any run can be checked, whatever the number of workers, models, machines and interruptions.  Answers,
evaluations, screenings and profiles come from the store; nothing is asked or evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.core import versions
from evo.core.records import Candidate, Evaluation, OperatorRef, Profile, Proposal, Trial, bar_to_json
from evo.llm.prompt_scheduler import PromptScheduler
from evo.search.archive import Archive
from evo.search.scheduler import TUNED, Scheduler
from evo.search.strategies import strategy_of
from evo.storage.model_calls import Question, StoredCall, stored_calls
from evo.storage.queries import RunReader
from evo.storage.store import NEW_VERSIONS
from operators.base import Operator
from operators.llm.answers import shortened
from operators.llm.base import LlmContext, LlmOperator

NOTE_BEFORE = 160  # characters of a note that earlier versions kept
PROMPT = "prompt"  # the key of a question's prompt among what is compared


@dataclass(frozen=True)
class DecisionReplay:
    """One decision: the stored one, and the one made now."""

    name: str  # "call 3" or "trial 7"
    stored: Mapping[str, Any]
    made: Mapping[str, Any]

    @property
    def same(self) -> bool:
        return self.stored == self.made

    def difference(self) -> str:
        """Returns the first difference as a line of text."""
        key = next(k for k in self.stored if self.made.get(k) != self.stored[k])
        return f"{self.name}: {key}: stored {self.stored[key]!r}, made again {self.made.get(key)!r}"


@dataclass(frozen=True)
class _Step:
    """A decision, and how many trials had finished and had been proposed before it."""

    told: int
    proposed: int
    asks: bool  # sorted before the proposal that follows from the same state
    number: int  # of the call or the trial

    @property
    def place(self) -> tuple[int, int, bool, int]:
        return self.told, self.proposed, not self.asks, self.number


class Redoing:
    """Makes a run's decisions again.  Use `decisions` once; each decision starts from the stored state before it."""

    def __init__(
        self,
        run: RunReader,
        operators: Mapping[str, Operator],
        llm_operators: Mapping[str, LlmOperator],
        context: Callable[..., LlmContext],
    ) -> None:
        config = run.info.config
        self._run = run
        same_code = run.info.versions.get("code") == versions.own_versions().get("code")
        self._compares_prompts = same_code and all(kind != NEW_VERSIONS for kind, _, _ in run.events())
        self._finished = list(run.trials())
        self._proposals = {p.index: p for p in [*(t.proposal for t in self._finished), *run.pending()]}
        self._verdicts = {t.index: t.evaluation for t in self._finished}
        self._calls = {c.call.number: c for c in stored_calls(run)}
        self._call_of = {c.trial: c for c in self._calls.values() if c.trial is not None}
        self._known: dict[int, Trial] = {}  # what was finished so far
        self._registered = 0
        self._flying: dict[int, StoredCall] = {}
        self._archive = Archive()
        self._prompts = PromptScheduler(
            llm_operators,
            config.models,
            config.guidance,
            lambda index: self._known.get(index) or self._proposals[index],
            self._profiles,
            context,
            strategy_of(config).remembers,
            run.seed_estimate,
        )
        # If nothing was screened, the run made its proposals without an evaluator.
        screen = self._screen if run.screen_count() else None
        self._wanted: Proposal | None = None  # that is made again; None for a question
        self._scheduler = Scheduler(
            config, operators, self._archive, screen, self._prompts, self._is_duplicate if config.serial else None
        )
        self._rules = [o for o in config.operators if not OperatorRef.parse(o).asks]
        self._models = [o for o in config.operators if OperatorRef.parse(o).asks]

    def decisions(self) -> Iterator[DecisionReplay]:
        """Yields every decision but the seed, in their order."""
        self._scheduler.assume_seed(self._proposals[0].candidate)
        for step in sorted([*self._asked(), *self._made()], key=lambda s: s.place):
            self._advance(step)
            if step.asks:
                yield self._ask(self._calls[step.number])
            elif step.number in self._call_of:
                yield self._read(self._call_of[step.number])
            else:
                yield self._propose(self._proposals[step.number])

    def _asked(self) -> Iterator[_Step]:
        for stored in self._calls.values():
            question = stored.call.question
            yield _Step(question.told, question.proposed, True, stored.call.number)

    def _made(self) -> Iterator[_Step]:
        told = self._run.finished_before()
        for index, proposal in self._proposals.items():
            if index in self._call_of:
                question = self._call_of[index].call.question
                yield _Step(question.told + int(proposal.cost["stale"]), index, False, index)
            elif index:
                yield _Step(told[index], index, False, index)

    def _advance(self, step: _Step) -> None:
        for trial in self._finished[len(self._known) : step.told]:
            self._known[trial.index] = trial
            self._scheduler.tell(trial, self._archive.add(trial))
        for index in range(self._registered, step.proposed):
            self._scheduler.register(self._proposals[index])
        self._registered = max(self._registered, step.proposed)

    def _ask(self, stored: StoredCall) -> DecisionReplay:
        for number, other in list(self._flying.items()):
            if other.call.error and other.ended_at is not None and other.ended_at < stored.asked_at:
                self._prompts.collected(self._flying.pop(number).call.question)
        question = stored.call.question
        self._wanted = None
        redone = self._first_same(f"call {stored.call.number}", self._of_question(question), self._models)
        self._flying[stored.call.number] = stored
        self._prompts.asked(question)
        return redone

    def _read(self, stored: StoredCall) -> DecisionReplay:
        assert stored.trial is not None  # it is one of those with a trial
        self._flying.pop(stored.call.number)
        self._prompts.collected(stored.call.question)
        made = self._scheduler.read(stored.call)
        verdict = self._verdicts.get(stored.trial) if made.evaluation else None
        return DecisionReplay(
            f"trial {stored.trial}",
            _of_proposal(self._proposals[stored.trial], verdict),
            _of_proposal(made.proposal, made.evaluation),
        )

    def _propose(self, proposal: Proposal) -> DecisionReplay:
        self._wanted = proposal
        return self._first_same(f"trial {proposal.index}", _of_proposal(proposal), self._rules)

    def _first_same(self, name: str, stored: Mapping[str, Any], kind: Sequence[str]) -> DecisionReplay:
        """Chooses among all operators, then among those of one kind, as runs with several workers do."""
        tried = []
        for among in ([*self._rules, *self._models], kind):
            made = self._scheduler.ask(among)
            found = self._of_question(made) if isinstance(made, Question) else _of_proposal(made) if made else {}
            tried.append(DecisionReplay(name, stored, found))
            if tried[-1].same:
                break
        return next((r for r in tried if r.same), tried[0])

    def _of_question(self, question: Question) -> dict[str, Any]:
        q = question
        prompt = {PROMPT: q.prompt.hash} if self._compares_prompts else {}
        return {"operator": q.operator, "parents": q.parents, "island": q.island, **prompt}

    def _screen(self, sources: Sequence[str]) -> list[float | None]:
        """Returns stored estimates, None for others: the run did not make sources that it did not screen."""
        ids = [Candidate(source).id for source in sources]
        known = self._run.screened(ids)
        return [known.get(i) for i in ids]

    def _is_duplicate(self, source: str, plans: Container[str]) -> bool:
        """Returns whether the run dropped a draft as a duplicate; a proposal's costs have the number, which is
        compared.
        """
        wanted = self._wanted
        return wanted is None or bool(wanted.cost.get("twins") and Candidate(source).id != wanted.candidate.id)

    def _profiles(self, parents: Sequence[int]) -> Mapping[int, Profile]:
        return self._run.profiles([p for p in parents if p in self._known])


def _beginning(note: str) -> str:
    """Returns what earlier versions kept of a note: 160 characters, and after them that parameters were tuned."""
    kept = shortened(note.removesuffix(TUNED), NOTE_BEFORE)
    return kept + TUNED if note.endswith(TUNED) else kept


def _of_proposal(proposal: Proposal, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """Returns what is compared of a proposal, with the evaluation if that follows from the answer alone."""
    p = proposal
    return {
        "operator": p.operator,
        "parents": p.parents,
        "island": p.island,
        "candidate": p.candidate.id,
        "seed": p.seed,
        "note": _beginning(p.note),
        "cost": dict(p.cost),
        "bar": bar_to_json(p.bar),
        "verdict": f"{evaluation.verdict}: {evaluation.message}" if evaluation else "",
    }
