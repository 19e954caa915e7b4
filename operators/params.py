"""Searches the parameters of one candidate by an inner genetic algorithm that is screened instead of measured."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from evo.core.records import candidate_id
from operators.base import Context, Draft, Parent, Screen
from operators.genes import COMPUTED, Gene, get_genes, set_genes

Setting = tuple[int, ...]  # one value per gene, in the order of get_genes.

_POPULATION = 4  # a third of the usual screening budget of 12: several generations.
_CROSSOVER = 0.5  # share of children with two parents
_STALE_GENERATIONS = 3  # generations without a new setting after which the neighbourhood counts as exhausted
FEWEST = 4  # measured candidates; with fewer they have no say
POOL = 32  # neighbours among which measurements choose
_BLIND = 0.25  # share of settings that measurements have no say in: what they say may be wrong

# A thread holds this lock while DEAP uses the global `random`: searches may run in several threads of a process.
GLOBAL_RANDOM = threading.Lock()


@contextmanager
def seeded_global_random(rng: random.Random) -> Iterator[None]:
    """Seeds the global `random`, from which DEAP draws, with `rng`, and restores the old state at the end."""
    with GLOBAL_RANDOM:
        state = random.getstate()
        random.seed(rng.getrandbits(64))
        try:
            yield
        finally:
            random.setstate(state)


@dataclass
class Screened:
    """Screens settings in batches, each distinct source once, and never more than `budget` of them."""

    source: str
    genes: tuple[Gene, ...]
    screen: Screen
    budget: int
    scores: dict[Setting, float | None] = field(default_factory=dict)
    count: int = 0

    @property
    def left(self) -> int:
        return self.budget - self.count

    def text(self, setting: Setting) -> str:
        return _text(self.source, self.genes, setting)

    def __call__(self, settings: Sequence[Setting]) -> None:
        """Score the settings not yet known, as many as the budget allows."""
        new = list(dict.fromkeys(s for s in settings if s not in self.scores))[: self.left]
        if new:
            self.count += len(new)
            self.scores.update(zip(new, self.screen([self.text(s) for s in new]), strict=True))

    def best(self, exclude: Setting | None = None) -> Setting | None:
        """The setting with the highest score (the first of equals), None if none compiled."""
        known = [(v, s) for s, v in self.scores.items() if v is not None and s != exclude]
        return max(known, key=lambda pair: pair[0])[1] if known else None


def tune(source: str, screen: Screen, rng: random.Random, budget: int) -> tuple[str, dict[str, float]]:
    """The best setting of `source` (its own among them) found with at most `budget` screenings, and what it cost."""
    genes = get_genes(source)
    if not genes or budget < 1:
        return source, {"screened": 0.0}
    screened = Screened(source, genes, screen, budget)
    start = tuple(g.value for g in genes)
    screened([start])
    _evolve(screened, neighbours(genes, start, rng, _POPULATION), rng)
    best = screened.best()
    return screened.text(best) if best is not None else source, {"screened": float(screened.count)}


def _evolve(screened: Screened, population: Sequence[Setting], rng: random.Random) -> None:
    """A genetic algorithm from `population` on until the budget is spent or nothing new turns up."""
    screened(population)
    stale = 0
    while screened.left > 0 and stale < _STALE_GENERATIONS:
        before = screened.count
        screened(_offspring(screened, rng))
        stale = stale + 1 if screened.count == before else 0


def _offspring(screened: Screened, rng: random.Random) -> list[Setting]:
    """One generation: tournaments among the best so far (the elite), crossover, one mutation each."""
    from deap import tools

    known = [_ParameterSetting(s, v) for s, v in screened.scores.items() if v is not None]
    if not known:
        return [_random_setting(screened.genes, rng) for _ in range(_POPULATION)]
    children: list[Setting] = []
    with seeded_global_random(rng):
        elite = tools.selBest(known, _POPULATION)
        chosen = tools.selTournament(elite, 2 * _POPULATION, tournsize=2)
        for first, second in zip(chosen[::2], chosen[1::2], strict=True):
            child = list(first)
            if len(child) > 1 and rng.random() < _CROSSOVER:
                child, _ = tools.cxUniform(child, list(second), indpb=0.5)
            children.append(_neighbour(screened.genes, tuple(child), rng))
    return children


class _ParameterSetting(list):  # type: ignore[type-arg]
    """A setting as DEAP wants it: a list with a `fitness` that compares."""

    def __init__(self, setting: Setting, speedup: float) -> None:
        super().__init__(setting)
        self.fitness = speedup


def _neighbour(genes: Sequence[Gene], setting: Setting, rng: random.Random) -> Setting:
    """One to three genes moved, mostly by one step and sometimes anywhere."""
    moved = list(setting)
    for at in rng.sample(range(len(genes)), k=min(len(genes), rng.choice((1, 2, 2, 3)))):
        legal = genes[at].values
        here = legal.index(moved[at])
        steps = [legal[i] for i in (here - 2, here - 1, here - 1, here + 1, here + 1, here + 2) if 0 <= i < len(legal)]
        steps = [v for v in steps if v != COMPUTED]  # it is next to no number
        others = [v for v in legal if v != moved[at]]
        if others:
            far = rng.random() < 0.2 or moved[at] == COMPUTED or not steps
            moved[at] = rng.choice(others if far else steps)
    return tuple(moved)


def neighbours(genes: Sequence[Gene], setting: Setting, rng: random.Random, count: int) -> list[Setting]:
    return [_neighbour(genes, setting, rng) for _ in range(count)]


def _promising(source: str, genes: Sequence[Gene], context: Context, count: int) -> list[Setting]:
    """Settings next to that of `source`: at random, or of more those that the run's measurements speak for most."""
    rng, start = context.rng, tuple(g.value for g in genes)
    if len(context.measured) < FEWEST or rng.random() < _BLIND:
        return neighbours(genes, start, rng, count)
    from operators.surrogate import predicted  # imports NumPy

    pool = [s for s in dict.fromkeys(neighbours(genes, start, rng, POOL)) if s != start]
    whole = {g.name: g.value for g in get_genes(source)}
    scores = predicted(context.measured, [whole | named(genes, s) for s in pool])
    ranked = [s for _, s in sorted(zip(scores, pool, strict=True), key=lambda pair: -pair[0])]
    seen = {m.candidate for m in context.measured}
    new = (s for s in ranked if candidate_id(_text(source, tuple(genes), s)) not in seen)
    return list(itertools.islice(new, count)) or neighbours(genes, start, rng, count)


def named(genes: Sequence[Gene], setting: Setting) -> dict[str, int]:
    return {g.name: v for g, v in zip(genes, setting, strict=True)}


@lru_cache(maxsize=128)  # of one draft: a setting is looked at, perhaps screened, then drafted
def _text(source: str, genes: tuple[Gene, ...], setting: Setting) -> str:
    return set_genes(source, named(genes, setting))


def _random_setting(genes: Sequence[Gene], rng: random.Random) -> Setting:
    return tuple(rng.choice(g.values) for g in genes)


def _describe(genes: Sequence[Gene], setting: Setting) -> str:
    changed = [(g.name, g.value or "computed", v or "computed") for g, v in zip(genes, setting, strict=True)]
    return ", ".join(f"{name} {old}→{new}" for name, old, new in changed if old != new)


class Params:
    """The best setting of the parent's genes that an inner search finds and that is not the parent itself.

    It is returned even if it is not better than the parent, so that the search goes on.  Without a screen: one
    neighbour.  If the run has measured candidates, they choose the neighbours (`operators.surrogate`).
    """

    name = "params"
    arity = 1

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        source = parents[0].source
        genes = _movable(source)
        if not genes:
            return None
        start = tuple(g.value for g in genes)
        if context.screen is None or context.screen_budget < 1:
            (setting,) = _promising(source, genes, context, 1)
            return _draft(source, genes, setting, {})
        screened = Screened(source, genes, context.screen, context.screen_budget)
        screened.scores[start] = parents[0].speedup  # known, and good to breed from
        _evolve(screened, _promising(source, genes, context, _POPULATION), context.rng)
        best = screened.best(exclude=start)
        return _draft(source, genes, best, {"screened": float(screened.count)}) if best is not None else None


class RandomParams:
    """Sets all genes at random, uniformly over their legal values."""

    name = "random_params"
    arity = 1

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        genes = _movable(parents[0].source)
        if not genes:
            return None
        start = tuple(g.value for g in genes)
        setting = start
        while setting == start:
            setting = _random_setting(genes, context.rng)
        return _draft(parents[0].source, genes, setting, {})


def _movable(source: str) -> tuple[Gene, ...]:
    return tuple(g for g in get_genes(source) if len(g.values) > 1)


def _draft(source: str, genes: Sequence[Gene], setting: Setting, cost: Mapping[str, Any]) -> Draft | None:
    new = _text(source, tuple(genes), setting)
    return Draft(new, _describe(genes, setting), dict(cost)) if candidate_id(new) != candidate_id(source) else None
