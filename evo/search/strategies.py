"""Defines the strategies of a search on the same engine, with the same budget and the same evaluator.

A strategy decides which operator works on which parents.  Its state is a fold over finished trials, and its choices are
functions of that state and of the given random generator.  So runs can be repeated and resumed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from evo.llm.repairs import REPAIRS, repairable
from evo.search.arbiter import Arbiter, Decision
from evo.search.archive import Archive, Elite
from evo.search.bandit import Bandit
from evo.search.budget import SEED_OPERATOR, price

if TYPE_CHECKING:
    from evo.core.records import Trial
    from evo.core.settings import RunConfig

# Candidates `Random` chooses from.
RESERVOIR = 256


class Strategy(Protocol):
    """Chooses operators and parents.  Attributes of the class:

    `screens`: operators may screen drafts by estimate, which is selection too.  `operators`: its default operators.
    `asks`: it works with language models alone.  `path`: it knows every result before it chooses, so one candidate and
    one question are in flight at a time.  `remembers`: prompts describe earlier tries.
    """

    screens: bool
    operators: tuple[str, ...]
    asks: bool
    path: bool
    remembers: bool
    ended: str  # why it ended the search, "" while it goes on

    def __init__(self, config: RunConfig, archive: Archive) -> None: ...

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        """Takes in a finished trial; `elite` if it is a possible parent."""

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        """Returns the name of one of the operators `among`.  `wide`: earlier choices gave nothing new."""
        ...

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        """Returns up to `count` different parents."""
        ...


class Evolve:
    """Islands in a ring, parents by ε-lexicase, survivors by NSGA-II, operators by a bandit, niches in the archive."""

    screens = True
    operators: tuple[str, ...] = ("params", "rewrite", "recombine")
    asks = path = False
    remembers = True
    ended = ""

    def __init__(self, config: RunConfig, archive: Archive) -> None:
        self._archive = archive
        self._capacity = config.population
        self._migrate_every = config.migrate_every
        self._archive_share = config.archive_share
        self._price = partial(price, budget=config.budget, max_tokens=config.max_tokens, max_usd=config.max_usd)
        self._told = 0
        self.bandit = Bandit(config.operators)
        self.islands: list[list[Elite]] = [[] for _ in range(config.islands)]

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        self.bandit.credit(trial.proposal.operator, reward, self._price(trial.proposal.cost))
        if elite is not None:
            everywhere = trial.proposal.operator == SEED_OPERATOR
            for island in range(len(self.islands)) if everywhere else [trial.proposal.island]:
                self._settle(island, elite)
        self._told += 1
        if self._told % self._migrate_every == 0:
            self._migrate()

    def _settle(self, island: int, elite: Elite) -> None:
        from evo.search.selection import survivors

        population = self.islands[island]
        if any(other.index == elite.index for other in population):
            return
        population.append(elite)
        # Sorting fronts is quadratic: let twice the capacity gather, then sort once.
        if len(population) > 2 * self._capacity:
            self.islands[island] = survivors(population, self._capacity)

    def _migrate(self) -> None:
        """The best of every island is copied to its neighbour."""
        champions = [max(p, key=lambda e: (e.speedup, -e.index), default=None) for p in self.islands]
        for island, champion in enumerate(champions):
            if champion is not None:
                self._settle((island + 1) % len(self.islands), champion)

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        return rng.choice(among) if wide else self.bandit.choose(rng, among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        from evo.search.selection import lexicase

        if wide:
            niches = self._archive.elites() if self._archive_share else []
            everyone = {e.index: e for population in (*self.islands, niches) for e in population}
            return rng.sample(list(everyone.values()), min(count, len(everyone)))
        chosen = lexicase(self.islands[island], count, rng)
        if rng.random() < self._archive_share and chosen:
            visitor = rng.choice(self._archive.elites())
            if all(visitor.index != e.index for e in chosen):
                chosen[-1] = visitor
        return chosen


class Random:
    """No selection at all: any operator, any earlier correct candidate, no screening.  The baseline of baselines."""

    screens = False
    operators: tuple[str, ...] = ("random_params", "rewrite", "recombine")
    asks = path = False
    remembers = True
    ended = ""

    def __init__(self, config: RunConfig, archive: Archive) -> None:
        self._seed = config.seed
        self._seen = 0
        self._pool: list[Elite] = []

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if elite is None:
            return
        self._seen += 1
        if len(self._pool) < RESERVOIR:
            self._pool.append(elite)
            return
        # Reservoir sampling (Vitter 1985): every earlier candidate is in the pool with the same chance.
        place = random.Random(f"{self._seed}/reservoir/{trial.index}").randrange(self._seen)
        if place < RESERVOIR:
            self._pool[place] = elite

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        return rng.choice(among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return rng.sample(self._pool, min(count, len(self._pool)))


class HillClimb:
    """A single path: always from the best so far (with the best before it, if an operator takes two)."""

    screens = True
    operators: tuple[str, ...] = ("params", "rewrite")
    asks = path = False
    remembers = True
    ended = ""

    def __init__(self, config: RunConfig, archive: Archive) -> None:
        self._path: list[Elite] = []

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if elite is not None and (not self._path or elite.speedup > self._path[0].speedup):
            self._path = [elite, *self._path[:1]]

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        return rng.choice(among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return self._path[:count]


class BestOfN:
    """Independent samples: every question is about the seed, without earlier tries."""

    screens = False
    operators: tuple[str, ...] = ("mutate",)
    asks = True
    path = remembers = False
    ended = ""

    def __init__(self, config: RunConfig, archive: Archive) -> None:
        self._seed: list[Elite] = []

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if trial.proposal.operator == SEED_OPERATOR and elite is not None:
            self._seed = [elite]

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        return rng.choice(among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return self._seed[:count]


class TritonForge:
    """TritonForge's loop (arXiv:2512.09196): a single path of rounds, each a change and, if it fails, repairs.

    After each round an arbiter (`evo/search/arbiter.py`) decides to continue from the child, to try again, or to end.
    """

    screens = False
    operators: tuple[str, ...] = ("mutate", "repair")
    asks = path = remembers = True

    def __init__(self, config: RunConfig, archive: Archive) -> None:
        self._repairs_possible = any(_operator_of(name) == "repair" for name in config.operators)
        self._arbiter = Arbiter()
        self._base: tuple[Trial, Elite] | None = None
        self._repairs = 0  # of the present round
        self._mending = False
        self.ended = ""

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if self._base is None:
            self._base = (trial, elite) if elite is not None else None
            return
        self._mending = self._repairs_possible and repairable(trial.evaluation) and self._repairs < REPAIRS
        if self._mending:
            self._repairs += 1
            return
        self._repairs = 0
        decision = self._arbiter.decide(self._base[0], trial)
        if decision is Decision.ACCEPT and elite is not None:
            self._base = trial, elite
        if decision is Decision.FINISH:
            self.ended = f"the arbiter ended the path after {self._arbiter.rounds} rounds"

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        wanted = [name for name in among if (_operator_of(name) == "repair") is self._mending]
        return rng.choice(wanted or among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return [self._base[1]][:count] if self._base else []


def _operator_of(arm: str) -> str:
    """ "mutate" of "mutate@NAME"."""
    return arm.partition("@")[0]


STRATEGIES: dict[str, type[Strategy]] = {
    "evolve": Evolve,
    "random": Random,
    "hillclimb": HillClimb,
    "best-of-n": BestOfN,
    "tritonforge": TritonForge,
}
