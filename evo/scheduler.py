"""What to evaluate next: a new candidate, made by an operator from parents that the strategy chose.

`ask` changes nothing.  All state is a fold over `register` (proposals) and `tell` (trials), live and on resume alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from evo.archive import Archive, Elite, Niche
from evo.bandit import reward
from evo.budget import SEED_OPERATOR
from evo.config import RunConfig
from evo.records import Candidate, Proposal, Trial, Verdict
from evo.strategies import STRATEGIES, Strategy
from operators.base import Context, Operator, Parent, Screen

# Drafts tried for one proposal before the space counts as exhausted.  The first few may screen (which costs
# compilations), the later half leaves the strategy's preferences for uniformly random choices.
ATTEMPTS = 48
SCREENED_ATTEMPTS = 4


class Scheduler:
    """Ask/tell.  Candidates are distinct: a source that equals an earlier one is never proposed again."""

    def __init__(
        self, config: RunConfig, operators: Mapping[str, Operator], archive: Archive, screen: Screen | None
    ) -> None:
        self._config = config
        self._operators = operators
        self._strategy: Strategy = STRATEGIES[config.strategy](config, archive)
        self._screen = screen if self._strategy.screens and config.screen_budget else None
        self._seen: set[str] = set()
        self._speedups: dict[int, float] = {}
        self._known: dict[str, str] = {}
        self.known: Mapping[str, str] = MappingProxyType(self._known)  # plan hash -> id of the first OK candidate
        self._assumed: list[Elite] = []
        self.next_index = 0

    def register(self, proposal: Proposal) -> None:
        """Takes note of a proposal, before it is evaluated."""
        self._seen.add(proposal.candidate.id)
        self.next_index = max(self.next_index, proposal.index + 1)

    def tell(self, trial: Trial, elite: Elite | None) -> None:
        """Takes in a finished trial."""
        if trial.evaluation.verdict is Verdict.OK and trial.evaluation.plan_hash:
            self._known.setdefault(trial.evaluation.plan_hash, trial.proposal.candidate.id)
        speedup = trial.fitness.speedup if trial.fitness else None
        if speedup is not None:
            self._speedups[trial.index] = speedup
        parent = max((self._speedups[p] for p in trial.proposal.parents), default=1.0)
        self._strategy.tell(trial, elite, reward(speedup, parent))

    def assume_seed(self, seed: Candidate) -> None:
        """Lets `seed` be a parent before it is evaluated: its speedup is over itself, all else is unknown."""
        self._assumed = [Elite(0, seed.source, 1.0, {}, 0.0, Niche("unknown", 0, 0, 0))]

    def first(self, seed: Candidate) -> Proposal:
        """Trial 0: the seed kernel."""
        return Proposal(0, seed, SEED_OPERATOR, seed=self._seed_of(0), note="the task's seed kernel")

    def ask(self) -> Proposal | None:
        """The next proposal; None where no new candidate could be made from what is known now."""
        index = self.next_index
        cost: Counter[str] = Counter()
        for attempt in range(ATTEMPTS):
            rng = random.Random(f"{self._config.seed}/{index}/{attempt}")
            proposal = self._attempt(index, attempt, rng, cost)
            if proposal is not None:
                return proposal
        return None

    def _attempt(self, index: int, attempt: int, rng: random.Random, cost: Counter[str]) -> Proposal | None:
        wide = attempt >= ATTEMPTS // 2
        island = index % self._config.islands
        name = self._strategy.operator(rng, wide=wide)
        operator = self._operators[name]
        parents = self._strategy.parents(island, operator.arity, rng, wide=wide) or self._assumed
        if len(parents) < operator.arity:
            return None
        screen = self._screen if attempt < SCREENED_ATTEMPTS else None
        draft = operator(_as_parents(parents), Context(rng, screen, self._config.screen_budget))
        if draft is None:
            return None
        cost.update(draft.cost)  # type: ignore[arg-type]  # what failed drafts cost is paid too; counts may be fractions
        candidate = Candidate(draft.source)
        if candidate.id in self._seen:
            return None
        return Proposal(
            index=index,
            candidate=candidate,
            operator=name,
            parents=tuple(p.index for p in parents),
            island=island,
            seed=self._seed_of(index),
            note=draft.note,
            cost={**cost, "drafts": attempt + 1},
        )

    def _seed_of(self, index: int) -> int:
        return random.Random(f"{self._config.seed}/{index}").getrandbits(31)  # fits every library's seed


def _as_parents(elites: Sequence[Elite]) -> list[Parent]:
    return [Parent(e.index, e.source, e.speedup, e.per_case) for e in elites]
