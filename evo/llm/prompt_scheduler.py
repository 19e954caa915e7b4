"""Makes a search's questions to language models, and proposals from their answers.

State is a fold over proposals and trials, like that of the scheduler it belongs to, plus the questions in flight.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from evo.core.models import Model
from evo.core.records import Candidate, Evaluation, OperatorRef, Profile, Proposal, SeedEstimate, Trial, Verdict
from evo.llm.repairs import REPAIRS, repairable
from evo.storage.model_calls import ModelAnswer, ModelCall, Question
from operators.base import Draft, Parent
from operators.llm.base import InFlight, LlmContext, LlmOperator, Tried, Unreadable
from operators.llm.operators import complementary

# Latest failures that are still worth a repair, and tries that prompts may describe.
FAILURES, HISTORY = 16, 64
PARENTS = 256  # kept in memory
SEED = 0  # the trial of the seed kernel


@dataclass(frozen=True)
class Made:
    """A proposal made from an answer; with its evaluation if the answer has nothing new to evaluate.

    `spans`: the places of plan and code in the answer; `answered`: the source in the answer, if the proposal has
    another one, since its parameters were tuned.
    """

    proposal: Proposal
    evaluation: Evaluation | None
    spans: Mapping[str, tuple[int, int]]
    answered: str | None = None


class PromptScheduler:
    """Makes questions, reads answers, remembers what was tried.

    `trial` gives an earlier trial; `context` a prompt's context from `evaluated` (whether a trial was, before),
    `rng`, `history`, `flying`, `profiles`, `guidance` and `answer`.  `seed_estimate` gives what is known of the seed
    kernel before that.
    """

    def __init__(
        self,
        operators: Mapping[str, LlmOperator],
        models: Collection[Model],
        guidance: str,
        trial: Callable[[int], Trial | Proposal],
        profiles: Callable[[Sequence[int]], Mapping[int, Profile]],
        context: Callable[..., LlmContext],
        remembers: bool = True,
        seed_estimate: Callable[[], SeedEstimate | None] = lambda: None,
    ) -> None:
        self._operators = operators
        self._models = {m.name: m for m in models}
        self._guidance = guidance
        self._trial, self._profiles, self._context = trial, profiles, context
        self._seed_estimate = seed_estimate
        self._remembers = remembers
        self._history: deque[Tried] = deque(maxlen=HISTORY if remembers else 0)
        self._proposed: dict[int, Tried] = {}  # made from answers, not evaluated yet
        self._finished: set[int] = set()
        self._parents: OrderedDict[int, Parent] = OrderedDict()  # those asked about lately
        self._failed: deque[int] = deque(maxlen=FAILURES)
        self._first: dict[int, int] = {}  # failed trial -> the failure that it should repair, or itself
        self._repairs: Counter[int] = Counter()  # repairs of a first failure, made or in flight
        self._flying: list[Question] = []  # in the order in which they were asked

    @property
    def flying(self) -> int:
        """Questions in flight."""
        return len(self._flying)

    def in_flight(self, question: Question) -> bool:
        """Returns whether an equal prompt is in flight."""
        return any(other.prompt.hash == question.prompt.hash for other in self._flying)

    def repairs(self, operator: str) -> bool:
        """Returns whether the parents of `operator` are failed candidates."""
        return self._of(operator).repairs

    def arity(self, operator: str) -> int:
        """Returns the number of parents that `operator` takes."""
        return self._of(operator).arity

    def choose(self, operator: str, pool: Sequence[Parent]) -> list[int]:
        """Returns as many of `pool` as `operator` takes; of two, each is better than the other in some case."""
        arity = self.arity(operator)
        if arity != 2:
            return [parent.index for parent in pool[:arity]]
        return [parent.index for parent in complementary(pool) or ()]

    def to_repair(self, rng: random.Random) -> list[int]:
        """Returns a failed trial that may still be repaired, or []."""
        newest = {self._first[f]: f for f in self._failed}
        open_ = [f for first, f in newest.items() if self._repairs[first] < REPAIRS]
        return [rng.choice(open_)] if open_ else []

    def question(
        self, operator: str, parents: Sequence[int], rng: random.Random, *, island: int, told: int, proposed: int
    ) -> Question | None:
        """Returns what `operator` ("mutate@NAME") asks about `parents`; None if it does not apply to them."""
        model = OperatorRef.parse(operator).model
        assert model is not None  # operators that ask have one
        known = {p: self._parent(p) for p in parents}
        profiles = {} if self._guidance == "none" else dict(self._profiles(parents))
        estimate = self._seed_estimate() if not told and SEED in known else None
        if estimate is not None:
            known[SEED] = dataclasses.replace(known[SEED], builds=estimate.builds, timings=estimate.timings)
            profiles |= {} if self._guidance == "none" else {SEED: estimate.profile}
        context = self._context(
            evaluated=told > 0,
            rng=rng,
            history=(*self._history, *self._proposed.values()),
            flying=self._others() if self._remembers else (),
            profiles=profiles,
            guidance=self._guidance,
            answer=self._models[model].answer,
            baseline=self._parent(SEED) if told and not parents else None,
        )
        prompt = self._of(operator).prompt([known[p] for p in parents], context)
        return None if prompt is None else Question(operator, prompt, tuple(parents), island, told, proposed)

    def asked(self, question: Question) -> None:
        """Notes that a question is in flight."""
        self._flying.append(question)
        self._count_repair(question.operator, question.parents, 1)

    def collected(self, question: Question) -> None:
        """Notes that the outcome of a question is known; after an answer, a proposal follows."""
        place = next(i for i, other in enumerate(self._flying) if other.prompt.hash == question.prompt.hash)
        del self._flying[place]
        self._count_repair(question.operator, question.parents, -1)

    def register(self, proposal: Proposal) -> None:
        """Notes a proposal.  When a run is made again, `tell` may have come before."""
        self._count_repair(proposal.operator, proposal.parents, 1)
        operator = OperatorRef.parse(proposal.operator)
        if self._remembers and operator.asks and proposal.index not in self._finished:
            self._proposed[proposal.index] = Tried(operator.name, proposal.note, None, parents=proposal.parents)

    def tell(self, trial: Trial, parent_speedup: float) -> None:
        """Takes in a finished trial, and the speedup of the best of its parents."""
        proposal, evaluation = trial.proposal, trial.evaluation
        operator = OperatorRef.parse(proposal.operator)
        self._finished.add(trial.index)
        self._proposed.pop(trial.index, None)
        repair = operator.asks and self.repairs(proposal.operator)
        first = self._first.get(proposal.parents[0], trial.index) if repair else trial.index
        if repairable(evaluation):
            self._first[trial.index] = first
            self._failed.append(trial.index)
        elif repair and trial.fitness is not None:
            self._repairs[first] = REPAIRS  # repaired
        if operator.asks:
            self._history.append(
                Tried(
                    operator=operator.name,
                    note=proposal.note,
                    verdict=evaluation.verdict,
                    message=evaluation.message,
                    speedup=trial.fitness.speedup if trial.fitness else None,
                    parent_speedup=parent_speedup,
                    parents=proposal.parents,
                    per_case=trial.fitness.per_case if trial.fitness else {},
                )
            )

    def read(self, call: ModelCall, index: int, seed: int, told: int, seen: Collection[str]) -> Made:
        """Returns the proposal `index` in the answer of `call`.

        An answer without a source, or with one that was proposed before, is a proposal too: it was paid for, and the
        next prompt mentions it.
        """
        question, answer = call.question, call.answer
        assert answer is not None  # failed calls have nothing to read
        parents = [self._parent(p) for p in question.parents]
        cut = _truncated(answer, self._models.get(question.model))
        draft = cut or self._of(question.operator).read(answer.text, parents)
        cost = _cost(answer) | {"stale": told - question.told} | (dict(draft.cost) if isinstance(draft, Draft) else {})

        def proposal(candidate: Candidate, note: str) -> Proposal:
            q = question
            ordered = draft.base_first(q.parents) if isinstance(draft, Draft) else q.parents
            return Proposal(index, candidate, q.operator, ordered, q.island, seed, note, cost)

        if isinstance(draft, Unreadable):
            nothing = _no_source(index, draft.reason)
            verdict = Evaluation(nothing.id, Verdict.REJECTED, "answer", message=draft.reason)
            return Made(proposal(nothing, "no source in the answer"), verdict, {})
        candidate = Candidate(draft.source)
        if candidate.id not in seen:
            return Made(proposal(candidate, draft.note), None, draft.spans)
        message = f"the answer repeats candidate {candidate.id}"
        nothing = _no_source(index, message)
        verdict = Evaluation(nothing.id, Verdict.DUPLICATE, "answer", message=message, duplicate_of=candidate.id)
        return Made(proposal(nothing, draft.note), verdict, draft.spans)

    def _others(self) -> tuple[InFlight, ...]:
        """Returns what answers are being written to."""
        return tuple(InFlight(OperatorRef.parse(q.operator).name, q.parents, q.prompt.direction) for q in self._flying)

    def _parent(self, index: int) -> Parent:
        """Returns a trial as a parent, from a cache: reading one takes milliseconds, and questions repeat parents."""
        if index in self._parents:
            self._parents.move_to_end(index)
            return self._parents[index]
        trial = self._trial(index)
        if isinstance(trial, Trial):
            self._parents[index] = _as_parent(trial)
            if len(self._parents) > PARENTS:
                self._parents.popitem(last=False)
            return self._parents[index]
        # The seed, if candidates are proposed before anything is evaluated.
        return Parent(trial.index, trial.candidate.source, speedup=1.0)

    def _of(self, operator: str) -> LlmOperator:
        return self._operators[OperatorRef.parse(operator).name]

    def _count_repair(self, operator: str, parents: Sequence[int], by: int) -> None:
        asks = OperatorRef.parse(operator).asks
        if asks and self.repairs(operator) and parents and parents[0] in self._first:
            self._repairs[self._first[parents[0]]] += by


def _no_source(index: int, why: str) -> Candidate:
    """Returns a placeholder for the source that an answer lacks; it names the trial, as candidates are distinct."""
    return Candidate(f"trial {index} has no source: {why}\n")


def _truncated(answer: ModelAnswer, model: Model | None) -> Unreadable | None:
    if answer.finish != "length":
        return None
    tokens = answer.bill.tokens_out if answer.bill else None
    after = f" after {tokens} tokens" if tokens is not None else ""
    if tokens is not None and model is not None and tokens < model.max_tokens:
        return Unreadable(
            f"the answer was cut off{after}, before max_tokens: prompt and answer fill the model's context; "
            f"it has to be shorter, or the server to allow more context"
        )
    return Unreadable(f"the answer was cut off{after}: it has to be shorter, or --models FILE to allow more max_tokens")


def _cost(answer: ModelAnswer) -> dict[str, float]:
    if answer.bill is None:
        return {}
    cost: dict[str, float] = {"tokens_in": answer.bill.tokens_in, "tokens_out": answer.bill.tokens_out}
    return cost if answer.bill.usd is None else cost | {"usd": answer.bill.usd}


def _as_parent(trial: Trial) -> Parent:
    evaluation = trial.evaluation
    return Parent(
        index=trial.index,
        source=trial.proposal.candidate.source,
        speedup=trial.fitness.speedup if trial.fitness else 0.0,
        per_case=dict(sorted(trial.fitness.per_case.items())) if trial.fitness else {},
        verdict=evaluation.verdict,
        stage=evaluation.stage,
        message=evaluation.message,
        findings=evaluation.findings,
        builds=evaluation.builds,
        frozen_source=evaluation.frozen_source,
        timings=evaluation.timings,
    )
