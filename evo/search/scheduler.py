"""Proposes what to evaluate next: an operator (or a model that it asks) makes it from parents of the strategy.

`ask` changes nothing.  All state is a fold over `register` (proposals) and `tell` (trials), live and on resume alike.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType

from evo.core.records import BASELINE_OPERATOR, SEED_OPERATOR, Candidate, OperatorRef, Proposal, Trial, Verdict
from evo.core.settings import RunConfig
from evo.llm.prompt_scheduler import Made, PromptScheduler
from evo.search.archive import Archive, Elite, Niche
from evo.search.bandit import reward
from evo.search.strategies import new_strategy
from evo.storage.best import best_source
from evo.storage.model_calls import ModelCall, Question
from operators.base import Context, Operator, Parent, Screen
from operators.params import tune
from operators.rewrites.configs import inlined
from operators.surrogate import MOST, Measured

# Drafts tried for one proposal before the space counts as exhausted.  The first few may screen (which costs
# compilations), the later half leaves the strategy's preferences for uniformly random choices.
ATTEMPTS = 48
SCREENED_ATTEMPTS = 4
# Says whether a source does the same work on the device as a plan with one of these hashes.
IsDuplicate = Callable[[str, Container[str]], bool]
TUNED = "; parameters tuned"  # at the end of a note
# Parents to choose two from that complement each other.  Few, so that it is not always the same two.
POOL = 4
# Verdicts that another try may not give.
_BY_CHANCE = (Verdict.TIMEOUT, Verdict.INFRASTRUCTURE)


class Scheduler:
    """Ask/tell.  Candidates are distinct: a source that equals an earlier one is never proposed again."""

    def __init__(
        self,
        config: RunConfig,
        operators: Mapping[str, Operator],
        archive: Archive,
        screen: Screen | None,
        prompts: PromptScheduler | None = None,
        is_duplicate: IsDuplicate | None = None,
    ) -> None:
        """is_duplicate: compiles a draft; with it, up to `config.redrafts` duplicate drafts a proposal are dropped."""
        self._config = config
        self._is_duplicate = is_duplicate if config.redrafts else None
        self._plans: set[str] = set()  # of all evaluated candidates
        self._operators = operators
        self._strategy = new_strategy(config, archive)
        self._screen = screen if self._strategy.screens and config.screen_budget else None
        self._tuning = screen if self._strategy.screens and config.tune_budget else None
        self._prompts = prompts
        self._known_ids: set[str] = set()
        self._reached: dict[int, float] = {}  # speedup of a trial; of its best parent, if it has none
        self._measured = Measurements()
        self._finished = 0
        self._known: dict[str, str] = {}
        self.known: Mapping[str, str] = MappingProxyType(self._known)  # plan hash -> id of the first OK candidate
        self._assumed: list[Elite] = []
        self._kernel_known = not config.baseline_kind.pytorch  # whether there is something to begin from
        self.next_index = 0

    def register(self, proposal: Proposal) -> None:
        """Takes note of a proposal, before it is evaluated."""
        self._known_ids.add(proposal.candidate.id)
        self.next_index = max(self.next_index, proposal.index + 1)
        if self._prompts is not None:
            self._prompts.register(proposal)

    def tell(self, trial: Trial, elite: Elite | None) -> None:
        """Takes in a finished trial."""
        if trial.evaluation.plan_hash and trial.evaluation.verdict not in _BY_CHANCE:
            self._plans.add(trial.evaluation.plan_hash)
        if trial.evaluation.verdict is Verdict.OK and trial.evaluation.plan_hash:
            self._known.setdefault(trial.evaluation.plan_hash, trial.proposal.candidate.id)
        fitness = trial.fitness or trial.evaluation.looked  # too slow to be a parent, but perhaps faster than its own
        speedup = fitness.speedup if fitness else None
        # Only the seed is a parent before it is finished (`assume_seed`).
        parent = max((self._reached.get(p, 1.0) for p in trial.proposal.parents), default=1.0)
        self._reached[trial.index] = parent if speedup is None else speedup
        self._kernel_known |= elite is not None
        if self._config.surrogate and trial.proposal.is_kernel:
            self._measured.add(trial)
        self._finished += 1
        self._strategy.tell(trial, elite, reward(speedup, parent))
        if self._prompts is not None:
            self._prompts.tell(trial, parent)

    def assume_seed(self, seed: Candidate) -> None:
        """Lets `seed` be a parent before it is evaluated: its speedup is over itself, all else is unknown.

        PyTorch as the baseline is never a parent.
        """
        if self._config.baseline_kind.pytorch:
            return
        self._assumed = [Elite(0, seed.source, 1.0, {}, 0.0, Niche("unknown", 0, 0, 0))]

    @property
    def ended(self) -> str:
        """Why the strategy ended the search, "" while it goes on."""
        return self._strategy.ended

    @property
    def path(self) -> bool:
        """Whether each proposal has to know the results of all before it."""
        return self._strategy.path

    def first(self, seed: Candidate) -> Proposal:
        """Trial 0: the seed kernel, or the call of PyTorch that a task without one is timed against."""
        if self._config.baseline_kind.pytorch:
            note = self._config.baseline_kind.text
            return Proposal(0, seed, BASELINE_OPERATOR, seed=self._seed_of(0), note=note)
        return Proposal(0, seed, SEED_OPERATOR, seed=self._seed_of(0), note="the task's seed kernel")

    def ask(self, among: Sequence[str] | None = None) -> Proposal | Question | None:
        """Returns a proposal to evaluate or a question to a model; None if the known trials allow nothing new.

        among: the operators to choose from; None: all.
        """
        if self.ended:
            return None
        # Questions in flight will be proposals: counting them makes each question different.
        step = self.next_index + (self._prompts.flying if self._prompts else 0)
        cost: Counter[str] = Counter()
        among = self._possible(among or self._config.operators)
        for attempt in range(ATTEMPTS if among else 0):
            rng = random.Random(f"{self._config.seed}/{step}/{attempt}")
            made = self._attempt(step, attempt, rng, cost, among)
            if isinstance(made, Proposal) and self._dropped(made, cost):
                continue
            if made is not None:
                return made
        return None

    def _possible(self, among: Sequence[str]) -> Sequence[str]:
        """Returns which of these operators can work now, if the task has no seed kernel.

        Until a right kernel is known: those that write a first one, and repairs of those that failed.  Afterwards the
        others, if there are any: a first kernel from the reference alone would ignore what is known.
        """
        if not self._config.baseline_kind.pytorch:
            return among
        first = [name for name in among if self._is_first(name)]
        if self._kernel_known:
            return [name for name in among if name not in first] or first
        return [*first, *(name for name in among if self._repairs(name))]

    def _is_first(self, operator: str) -> bool:
        return self._prompts is not None and OperatorRef.parse(operator).asks and not self._prompts.arity(operator)

    def _repairs(self, operator: str) -> bool:
        return self._prompts is not None and OperatorRef.parse(operator).asks and self._prompts.repairs(operator)

    def _operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        """Returns the strategy's choice; before a kernel is known, a repair if there is something to repair."""
        if self._kernel_known:
            return self._strategy.operator(rng, among, wide=wide)
        assert self._prompts is not None  # only operators that ask are possible
        repairs = [name for name in among if self._repairs(name)]
        first = [name for name in among if name not in repairs]
        open_ = bool(repairs) and bool(self._prompts.to_repair(rng)) and not wide
        return rng.choice(repairs if open_ else first or among)

    def _dropped(self, proposal: Proposal, cost: Counter[str]) -> bool:
        """Returns whether to draft again, because the result of this draft is known."""
        if self._is_duplicate is None or cost["twins"] >= self._config.redrafts:
            return False
        if not self._is_duplicate(proposal.candidate.source, self._plans):
            return False
        cost["twins"] += 1  # the key that stores have
        return True

    def read(self, call: ModelCall) -> Made:
        """Returns the next proposal, made from an answer."""
        assert self._prompts is not None  # a call comes from it
        index = self.next_index
        made = self._prompts.read(call, index, self._seed_of(index), self._finished, self._known_ids)
        return made if made.evaluation is not None or self._tuning is None else self._tuned(made, self._tuning)

    def _tuned(self, made: Made, screen: Screen) -> Made:
        """Replaces the parameters of a structure by the best of a few settings, to be fair to the structure."""
        proposal, source = made.proposal, made.proposal.candidate.source
        if screen([source])[0] is None:  # it fails unchanged: a repair starts from there
            return made
        rng = random.Random(f"{self._config.seed}/{proposal.index}/tune")
        best, cost = tune(source, screen, rng, self._config.tune_budget)
        candidate = Candidate(best)
        changed = candidate.id != proposal.candidate.id and candidate.id not in self._known_ids
        tuned = dataclasses.replace(
            proposal,
            candidate=candidate if changed else proposal.candidate,
            note=proposal.note + TUNED if changed else proposal.note,
            cost={**proposal.cost, **cost, "tuned": float(changed)},
        )
        return dataclasses.replace(made, proposal=tuned, answered=source if changed else None)

    def _attempt(
        self, step: int, attempt: int, rng: random.Random, cost: Counter[str], among: Sequence[str]
    ) -> Proposal | Question | None:
        wide = attempt >= ATTEMPTS // 2
        island = step % self._config.islands
        name = self._operator(rng, among, wide=wide)
        if OperatorRef.parse(name).asks:
            return self._question(name, island, rng, wide=wide)
        operator = self._operators[name]
        parents = self._strategy.parents(island, operator.arity, rng, wide=wide) or self._assumed
        if len(parents) < operator.arity:
            return None
        screen = self._screen if attempt < SCREENED_ATTEMPTS else None
        known = _as_parents(parents, frozen=self._config.frozen_parents)
        draft = operator(known, Context(rng, screen, self._config.screen_budget, self._measured.last))
        if draft is None:
            return None
        cost.update(draft.cost)  # type: ignore[arg-type]  # failed drafts cost too; counts may be fractions
        candidate = Candidate(draft.source)
        if candidate.id in self._known_ids:
            return None
        index = self.next_index
        return Proposal(
            index=index,
            candidate=candidate,
            operator=name,
            parents=draft.base_first([p.index for p in parents]),
            island=island,
            seed=self._seed_of(index),
            note=draft.note,
            cost={**cost, "drafts": attempt + 1},
            bar=self._strategy.bar(island) if self._config.progressive else None,
        )

    def _question(self, operator: str, island: int, rng: random.Random, *, wide: bool) -> Question | None:
        assert self._prompts is not None  # operators that ask a model need one
        arity = self._prompts.arity(operator)
        if self._prompts.repairs(operator):
            parents = self._prompts.to_repair(rng)
        else:
            elites = self._strategy.parents(island, POOL if arity == 2 else arity, rng, wide=wide) if arity else []
            parents = self._prompts.choose(operator, _as_parents(elites or self._assumed))
        if len(parents) < arity:
            return None
        question = self._prompts.question(
            operator, parents, rng, island=island, told=self._finished, proposed=self.next_index
        )
        # Another answer to a prompt in flight is worth less than one to another prompt, but more than none.
        return None if question and not wide and self._prompts.in_flight(question) else question

    def _seed_of(self, index: int) -> int:
        return random.Random(f"{self._config.seed}/{index}").getrandbits(31)  # fits every library's seed


def _as_parents(elites: Sequence[Elite], *, frozen: bool = False) -> list[Parent]:
    """Returns elites as parents.  frozen: with the configuration that was measured, because others change nothing."""
    sources = [inlined(e.frozen or e.source) if frozen else e.source for e in elites]
    return [Parent(e.index, source, e.speedup, e.per_case) for e, source in zip(elites, sources, strict=True)]


class Measurements:
    """The last evaluated candidates as `operators.surrogate` wants them: a fold over trials in their order."""

    def __init__(self) -> None:
        self._last: deque[Measured] = deque(maxlen=MOST)

    @property
    def last(self) -> tuple[Measured, ...]:
        return tuple(self._last)

    def add(self, trial: Trial) -> None:
        """Takes in a trial.  A duplicate is as fast as the candidate it repeats; faults of the machine do not count."""
        evaluation = trial.evaluation
        fitness = trial.fitness or evaluation.looked
        speedup = fitness.speedup if fitness else None
        if evaluation.verdict is Verdict.DUPLICATE:
            speedup = next((m.speedup for m in self._last if m.candidate == evaluation.duplicate_of), None)
        if speedup is None and evaluation.verdict in (Verdict.DUPLICATE, Verdict.INFRASTRUCTURE):
            return
        self._last.append(Measured(trial.proposal.candidate.id, best_source(trial), speedup))
