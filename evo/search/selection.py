"""Selects parents and survivors with DEAP, which is imported only when a search runs.

DEAP draws from Python's global random state: `lexicase` puts that of its argument in place and restores the old one.
`survivors` draws nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from evo.search.archive import Elite
from operators.params import GLOBAL_RANDOM


@dataclass
class _Individual:
    """An elite as DEAP expects it: with a `fitness`."""

    elite: Elite
    fitness: Any


class _Scores(NamedTuple):
    """A `fitness` that is only read, which lexicase selection does often: DEAP's own computes its values each time."""

    values: tuple[float, ...]
    weights: tuple[float, ...]


@lru_cache(maxsize=64)
def _maximising(objectives: int) -> type:
    from deap import base

    return type("Maximise", (base.Fitness,), {"weights": (1.0,) * objectives})


def _individuals(elites: Sequence[Elite], values: Sequence[tuple[float, ...]]) -> list[_Individual]:
    fitness = _maximising(len(values[0]))
    return [_Individual(elite, fitness(value)) for elite, value in zip(elites, values, strict=True)]


@contextmanager
def _lent_random(rng: random.Random) -> Iterator[None]:
    with GLOBAL_RANDOM:
        saved = random.getstate()
        random.setstate(rng.getstate())
        try:
            yield
        finally:
            rng.setstate(random.getstate())
            random.setstate(saved)


def lexicase(elites: Sequence[Elite], count: int, rng: random.Random) -> list[Elite]:
    """Returns `count` different parents by automatic ε-lexicase (La Cava et al. 2016) over the speedups of the single
    cases.

    It finds a specialist for one case as easily as a generalist.  It returns fewer than `count` if there are fewer.
    """
    from deap import tools

    weights = (1.0,) * len(elites[0].per_case) if elites else ()
    pool = [_Individual(e, _Scores(tuple(e.per_case.values()), weights)) for e in elites]
    chosen: list[Elite] = []
    with _lent_random(rng):
        while pool and len(chosen) < count:
            parent = tools.selAutomaticEpsilonLexicase(pool, 1)[0]
            pool = [other for other in pool if other is not parent]
            chosen.append(parent.elite)
    return chosen


def survivors(elites: Sequence[Elite], count: int) -> list[Elite]:
    """Returns the `count` elites to keep, by NSGA-II (Deb et al. 2002): speedup of each case, and occupancy.

    Occupancy keeps the frugal ones: room to grow counts.  The fastest over all cases always stays; the order is that of
    `elites`.
    """
    from deap import tools

    if len(elites) <= count:
        return list(elites)
    best = max(elites, key=lambda e: (e.speedup, -e.index))
    rest = [e for e in elites if e is not best]
    pool = _individuals(rest, [(*e.per_case.values(), e.occupancy) for e in rest])
    kept = {id(best)} | {id(individual.elite) for individual in tools.selNSGA2(pool, count - 1)}
    return [e for e in elites if id(e) in kept]
