"""What to evaluate next: a new candidate, made by an operator (or a model that it asks) from parents of the strategy.

`ask` changes nothing.  All state is a fold over `register` (proposals) and `tell` (trials), live and on resume alike.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType

from evo.core.records import Candidate, Proposal, Trial, Verdict
from evo.core.settings import RunConfig
from evo.llm.prompt_scheduler import Made, PromptScheduler
from evo.search.archive import Archive, Elite, Niche
from evo.search.bandit import reward
from evo.search.budget import SEED_OPERATOR
from evo.search.strategies import new_strategy
from evo.search.surrogate_data import Measurements
from evo.storage.model_calls import Call, Question
from operators.base import Context, Operator, Parent, Screen
from operators.params import tune
from operators.rewrites.configs import inlined

# Drafts tried for one proposal before the space counts as exhausted.  The first few may screen (which costs
# compilations), the later half leaves the strategy's preferences for uniformly random choices.
ATTEMPTS = 48
SCREENED_ATTEMPTS = 4
# Whether a source is the same work on the device as one of those whose plans have these hashes.
Twin = Callable[[str, Container[str]], bool]
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
        asker: PromptScheduler | None = None,
        twin: Twin | None = None,
    ) -> None:
        """`twin`: costs a compilation; where there is one, drafts that are twins of something told are dropped, at most
        `config.redrafts` for one proposal.
        """
        self._config = config
        self._twin = twin if config.redrafts else None
        self._plans: set[str] = set()  # of all that was judged
        self._operators = operators
        self._strategy = new_strategy(config, archive)
        self._screen = screen if self._strategy.screens and config.screen_budget else None
        self._tuning = screen if self._strategy.screens and config.tune_budget else None
        self._asker = asker
        self._seen: set[str] = set()
        self._reached: dict[int, float] = {}  # speedup of a trial; of its best parent, where it has none
        self._measured = Measurements()
        self._told = 0
        self._known: dict[str, str] = {}
        self.known: Mapping[str, str] = MappingProxyType(self._known)  # plan hash -> id of the first OK candidate
        self._assumed: list[Elite] = []
        self.next_index = 0

    def register(self, proposal: Proposal) -> None:
        """Takes note of a proposal, before it is evaluated."""
        self._seen.add(proposal.candidate.id)
        self.next_index = max(self.next_index, proposal.index + 1)
        if self._asker is not None:
            self._asker.register(proposal)

    def tell(self, trial: Trial, elite: Elite | None) -> None:
        """Takes in a finished trial."""
        if trial.evaluation.plan_hash and trial.evaluation.verdict not in _BY_CHANCE:
            self._plans.add(trial.evaluation.plan_hash)
        if trial.evaluation.verdict is Verdict.OK and trial.evaluation.plan_hash:
            self._known.setdefault(trial.evaluation.plan_hash, trial.proposal.candidate.id)
        speedup = trial.fitness.speedup if trial.fitness else None
        # Only the seed is a parent before it is finished (`assume_seed`).
        parent = max((self._reached.get(p, 1.0) for p in trial.proposal.parents), default=1.0)
        self._reached[trial.index] = parent if speedup is None else speedup
        if self._config.surrogate:
            self._measured.add(trial)
        self._told += 1
        self._strategy.tell(trial, elite, reward(speedup, parent))
        if self._asker is not None:
            self._asker.tell(trial, parent)

    def assume_seed(self, seed: Candidate) -> None:
        """Lets `seed` be a parent before it is evaluated: its speedup is over itself, all else is unknown."""
        self._assumed = [Elite(0, seed.source, 1.0, {}, 0.0, Niche("unknown", 0, 0, 0))]

    @property
    def ended(self) -> str:
        """Why nothing is asked for any more, "" while something may be."""
        return self._strategy.ended

    def first(self, seed: Candidate) -> Proposal:
        """Trial 0: the seed kernel."""
        return Proposal(0, seed, SEED_OPERATOR, seed=self._seed_of(0), note="the task's seed kernel")

    def ask(self, among: Sequence[str] | None = None) -> Proposal | Question | None:
        """What to do next, by one of the operators `among` (all, where none are named): a proposal to evaluate, or a
        question to a model.  None where nothing new could be made from what is known now."""
        if self.ended:
            return None
        # Questions in flight will be proposals: counting them makes each question another one.
        turn = self.next_index + (self._asker.flying if self._asker else 0)
        cost: Counter[str] = Counter()
        for attempt in range(ATTEMPTS):
            rng = random.Random(f"{self._config.seed}/{turn}/{attempt}")
            made = self._attempt(turn, attempt, rng, cost, among or self._config.operators)
            if isinstance(made, Proposal) and self._dropped(made, cost):
                continue
            if made is not None:
                return made
        return None

    def _dropped(self, proposal: Proposal, cost: Counter[str]) -> bool:
        """Whether to draft anew: what this would say is known."""
        if self._twin is None or cost["twins"] >= self._config.redrafts:
            return False
        if not self._twin(proposal.candidate.source, self._plans):
            return False
        cost["twins"] += 1
        return True

    def read(self, call: Call) -> Made:
        """The next proposal, made of an answer."""
        assert self._asker is not None  # who asked has one
        index = self.next_index
        made = self._asker.read(call, index, self._seed_of(index), self._told, self._seen)
        return made if made.evaluation is not None or self._tuning is None else self._tuned(made, self._tuning)

    def _tuned(self, made: Made, screen: Screen) -> Made:
        """A structure is judged by the best of a few settings of its parameters, not by those its author wrote.

        An answer costs far more than the estimates for that, where a GPU measures too.
        """
        proposal, source = made.proposal, made.proposal.candidate.source
        if screen([source])[0] is None:  # it is to fail as it is: a repair starts from there
            return made
        rng = random.Random(f"{self._config.seed}/{proposal.index}/tune")
        best, cost = tune(source, screen, rng, self._config.tune_budget)
        candidate = Candidate(best)
        changed = candidate.id != proposal.candidate.id and candidate.id not in self._seen
        tuned = dataclasses.replace(
            proposal,
            candidate=candidate if changed else proposal.candidate,
            note=f"{proposal.note}; parameters tuned" if changed else proposal.note,
            cost={**proposal.cost, **cost, "tuned": float(changed)},
        )
        return dataclasses.replace(made, proposal=tuned)

    def _attempt(
        self, turn: int, attempt: int, rng: random.Random, cost: Counter[str], among: Sequence[str]
    ) -> Proposal | Question | None:
        wide = attempt >= ATTEMPTS // 2
        island = turn % self._config.islands
        name = self._strategy.operator(rng, among, wide=wide)
        if "@" in name:
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
        cost.update(draft.cost)  # type: ignore[arg-type]  # what failed drafts cost is paid too; counts may be fractions
        candidate = Candidate(draft.source)
        if candidate.id in self._seen:
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
        )

    def _question(self, arm: str, island: int, rng: random.Random, *, wide: bool) -> Question | None:
        assert self._asker is not None  # arms with a model need one
        arity = self._asker.arity(arm)
        if self._asker.repairs(arm):
            parents = self._asker.to_repair(rng)
        else:
            elites = self._strategy.parents(island, POOL if arity == 2 else arity, rng, wide=wide) if arity else []
            parents = self._asker.choose(arm, _as_parents(elites or self._assumed))
        if len(parents) < arity:
            return None
        question = self._asker.question(arm, parents, rng, island=island, told=self._told, proposed=self.next_index)
        # Another answer to a prompt in flight is worth less than one to another prompt, but more than none.
        return None if question and not wide and self._asker.in_flight(question) else question

    def _seed_of(self, index: int) -> int:
        return random.Random(f"{self._config.seed}/{index}").getrandbits(31)  # fits every library's seed


def _as_parents(elites: Sequence[Elite], *, frozen: bool = False) -> list[Parent]:
    """frozen: what was measured of them.  A change of a configuration that does not win changes nothing."""
    sources = [inlined(e.frozen or e.source) if frozen else e.source for e in elites]
    return [Parent(e.index, source, e.speedup, e.per_case) for e, source in zip(elites, sources, strict=True)]
