"""Strategies: ways to search on the same engine, with the same budget and the same evaluator.

`Strategy` is what a user extends; the classes below it are evo's own.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from evo.core import plugins
from evo.core.errors import ConfigError
from evo.core.records import SEED_OPERATOR, Bar, OperatorRef, Trial
from evo.core.settings import RunConfig
from evo.llm.repairs import REPAIRS, repairable
from evo.search.arbiter import Arbiter, Decision
from evo.search.archive import Archive, Elite
from evo.search.bandit import Bandit
from evo.search.budget import price

# Candidates `Random` chooses from.
RESERVOIR = 256
# A candidate below the best PARENTS of its island is seldom a parent.  In 169 measured runs of TritonBench-G, 47 % of
# the right candidates were below; in 11 % of the runs the best kernel descended from one of these
# (runs/reference/tritonbench-g).
PARENTS = 4


class Strategy:
    """The base of all strategies: which operator works next, on which parents.

    One object belongs to one run.  The engine calls `start` once, then `tell` for each finished trial, in the order in
    which they finished, and `operator` and `parents` whenever it wants a candidate.  After a restart it makes a new
    object, calls `start`, and tells it all stored trials again, in the same order.  From that follow two rules:

    - State is a function of the configuration and of what `tell` got.  Anything else (time, files, the number of calls
      of `operator` or `parents`) would differ after a restart.
    - `operator` and `parents` change no state and take all randomness from `rng`.  The engine makes `rng` from the seed
      of the run, the number of the proposal and the number of the attempt; nothing else is random.  A choice in `tell`
      makes its own generator from `config.seed` and `trial.index`.

    `evo replay` finds a strategy that breaks them.  With several workers trials finish out of order, and up to
    `config.workers` candidates are chosen before `tell` gets the first of them.

    A strategy of a user subclasses this, has a `name`, and is registered as a class (called without arguments) or as an
    instance with settings of its own (copied before `start`): `evo.register_strategy`, docs/plugins.md.

    name: as the command line calls it.
    screens: whether operators may choose among drafts by estimate, which is selection too.
    operators: names of those that work if the user names none.
    asks: whether the strategy works with language models alone.
    path: whether it knows every result before it chooses, so that one candidate and one question are on their way.
    remembers: whether prompts say what was tried.
    ended: why it chooses nothing any more; "" while it does.
    """

    name: str = ""
    screens: bool = True
    operators: tuple[str, ...] = ("params", "rewrite")
    asks: bool = False
    path: bool = False
    remembers: bool = True
    ended: str = ""

    def start(self, config: RunConfig, archive: Archive) -> None:
        """Begin a run, before the first `tell`.

        config: the settings of the run, for example `islands`, `population` and `seed`.  `budget`, other limits and
            `workers` may differ when the run goes on: no choice should depend on them.
        archive: the best elite of every niche, to be read only.  The engine adds each trial before `tell` gets it.
        """

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        """Take in a finished trial; trial 0 is the seed kernel, or PyTorch.

        trial: the proposal (operator, parents, island), its evaluation, and its fitness if the verdict is ok.
        elite: the trial as a possible parent, None if the verdict is not ok.  It is also None for trial 0 if the task
            has no seed kernel: then PyTorch was timed, and the first elite is a kernel that a model wrote.
        reward: 0.0 if it is no faster than its best parent, else from 0.5 (a little) to 1.0 (at least twice as fast).
        """

    def operator(self, rng: random.Random, among: Sequence[str], *, wide: bool) -> str:
        """Choose one of the operators `among` (not empty; "mutate@gpt" asks the model gpt).

        wide: earlier attempts at this proposal gave nothing new, so look elsewhere.
        """
        return rng.choice(among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        """Choose up to `count` different parents, the most important one first; fewer if there are fewer.

        island: the population whose candidate is made, from 0 to `config.islands` - 1; strategies without populations
        leave it alone.
        """
        raise NotImplementedError(f"strategy {self.name!r} has no method `parents`")

    def bar(self, island: int) -> Bar | None:
        """Return the speedups that a candidate of `island` must reach to be a parent; None if any right one may be.

        A candidate that a rule made ends at a first look if it reaches none of them.  The best so far must reach the
        bar's `speedup`, or a new best could be missed.
        """
        return None


class Evolve(Strategy):
    """Islands in a ring, parents by ε-lexicase, survivors by NSGA-II, operators by a bandit, niches in the archive."""

    name = "evolve"
    operators: tuple[str, ...] = ("params", "rewrite", "recombine")

    def start(self, config: RunConfig, archive: Archive) -> None:
        self._archive = archive
        self._capacity = config.population
        self._migrate_every = config.migrate_every
        self._drops_seed = config.drops_seed
        self._archive_share = config.archive_share
        self._price = partial(price, budget=config.budget, max_tokens=config.max_tokens, max_usd=config.max_usd)
        self._finished = 0
        self.bandit = Bandit(config.operators)
        self.islands: list[list[Elite]] = [[] for _ in range(config.islands)]

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        self.bandit.credit(trial.proposal.operator, reward, self._price(trial.proposal.cost))
        if elite is not None:
            everywhere = trial.proposal.operator == SEED_OPERATOR
            # Without a seed kernel, islands start from the first right one.
            empty = [island for island, population in enumerate(self.islands) if not population]
            own = dict.fromkeys((trial.proposal.island, *empty))
            for island in range(len(self.islands)) if everywhere else own:
                self._settle(island, elite)
        self._finished += 1
        if self._finished % self._migrate_every == 0:
            self._migrate()

    def _settle(self, island: int, elite: Elite) -> None:
        from evo.search.selection import survivors

        population = self.islands[island]
        if any(other.index == elite.index for other in population):
            return
        population.append(elite)
        if self._drops_seed and any(_beats_the_seed(e) for e in population):
            population[:] = [e for e in population if e.index]
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
            if (visitor.index or not self._drops_seed) and all(visitor.index != e.index for e in chosen):
                chosen[-1] = visitor
        return chosen

    def bar(self, island: int) -> Bar | None:
        """Return the speedups of the last of the best PARENTS of the island: over all cases, and in each."""
        population = self.islands[island]
        if len(population) < PARENTS:
            return None

        def least(speedups: Iterable[float]) -> float:
            return sorted(speedups, reverse=True)[PARENTS - 1]

        cases = population[0].per_case
        return Bar(
            least(e.speedup for e in population), {case: least(e.per_case[case] for e in population) for case in cases}
        )


def _beats_the_seed(elite: Elite) -> bool:
    """Returns whether it is faster than the seed kernel in every case."""
    return bool(elite.per_case) and all(speedup > 1 for speedup in elite.per_case.values())


class Random(Strategy):
    """No selection at all: any operator, any earlier correct candidate, no screening.  The baseline of baselines."""

    name = "random"
    screens = False
    operators: tuple[str, ...] = ("random_params", "rewrite", "recombine")

    def start(self, config: RunConfig, archive: Archive) -> None:
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

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return rng.sample(self._pool, min(count, len(self._pool)))


class HillClimb(Strategy):
    """A single path: always from the best so far (with the best before it, if an operator takes two)."""

    name = "hillclimb"
    operators: tuple[str, ...] = ("params", "rewrite")

    def start(self, config: RunConfig, archive: Archive) -> None:
        self._path: list[Elite] = []

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if elite is not None and (not self._path or elite.speedup > self._path[0].speedup):
            self._path = [elite, *self._path[:1]]

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return self._path[:count]

    def bar(self, island: int) -> Bar | None:
        return Bar(self._path[0].speedup) if self._path else None


class BestOfN(Strategy):
    """Independent samples: every question is about the seed, without earlier tries.

    Of a task without a seed kernel, every question is about the reference: operators without parents ask them.
    """

    name = "best-of-n"
    screens = False
    operators: tuple[str, ...] = ("mutate",)
    asks = True
    remembers = False

    def start(self, config: RunConfig, archive: Archive) -> None:
        self._seed: list[Elite] = []

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        if trial.proposal.operator == SEED_OPERATOR and elite is not None:
            self._seed = [elite]

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return self._seed[:count]


class TritonForge(Strategy):
    """TritonForge's loop (arXiv:2512.09196): a single path of rounds, each a change and, if it fails, repairs.

    After each round an arbiter (`evo/search/arbiter.py`) decides to continue from the child, to try again, or to end.
    """

    name = "tritonforge"
    screens = False
    operators: tuple[str, ...] = ("mutate", "repair")
    asks = path = True

    def start(self, config: RunConfig, archive: Archive) -> None:
        self._repairs_possible = any(OperatorRef.parse(name).name == "repair" for name in config.operators)
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
        wanted = [name for name in among if (OperatorRef.parse(name).name == "repair") is self._mending]
        return rng.choice(wanted or among)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return [self._base[1]][:count] if self._base else []


STRATEGIES: dict[str, type[Strategy]] = {s.name: s for s in (Evolve, Random, HillClimb, BestOfN, TritonForge)}

_PARTS = ("screens", "operators", "asks", "path", "remembers", "ended", "start", "tell", "operator", "parents", "bar")


def built_in() -> Mapping[str, type[Strategy]]:
    """Evo's own strategies, by name."""
    return STRATEGIES


def missing(plugin: Any) -> str:
    """What a plug-in lacks to be a strategy, in words; "" for nothing."""
    lacks = [name for name in _PARTS if not hasattr(plugin, name)]
    if lacks:
        return f"expected a subclass of evo.search.strategies.Strategy, got one without {', '.join(lacks)}"
    kind = plugin if isinstance(plugin, type) else type(plugin)
    if getattr(kind, "parents", None) is Strategy.parents:
        return "expected a method `parents`, got none"
    return ""


def find_strategy(name: str) -> type[Strategy] | Strategy:
    """The strategy of that name, to read its attributes.  Raises ConfigError if there is none."""
    found: type[Strategy] | Strategy = plugins.resolve("strategies", name).value
    return found


def strategy_of(config: RunConfig) -> type[Strategy] | Strategy:
    """Return the strategy of a run, to read its attributes.

    Raises ConfigError if there is none of that name, or if it cannot work with the models and workers of `config`.
    """
    strategy = find_strategy(config.strategy)
    if strategy.asks and not config.models:
        raise ConfigError(f"strategy {config.strategy}: expected a model to ask, got none; name one by --model")
    if strategy.path and not config.serial:
        raise ConfigError(
            f"strategy {config.strategy} is a single path: expected one worker and one question at a time, got "
            f"{config.workers} and {config.llm_slots}; set --workers 1 and --llm-concurrency 1"
        )
    return strategy


def new_strategy(config: RunConfig, archive: Archive) -> Strategy:
    """The strategy of a run, started.  Raises ConfigError as `strategy_of` does."""
    found = strategy_of(config)
    strategy = found() if isinstance(found, type) else copy.deepcopy(found)
    strategy.start(config, archive)
    return strategy
