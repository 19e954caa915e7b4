"""evo.strategies."""

from __future__ import annotations

import random
from collections.abc import Iterable

from evo.archive import Archive
from evo.records import Trial
from evo.strategies import RESERVOIR, STRATEGIES, Evolve, HillClimb, Random, Strategy
from tests.engine_support import config, failed_trial, ok_trial


def told(kind: type[Strategy], trials: Iterable[Trial], **changes: float) -> Strategy:
    archive = Archive()
    strategy = kind(config(**changes), archive)
    for trial in trials:
        strategy.tell(trial, archive.add(trial), 0.0)
    return strategy


def indices(strategy: Strategy, count: int, island: int = 0, *, wide: bool = False, draws: int = 60) -> set[int]:
    """All indices that `draws` choices of parents came up with."""
    chosen = (strategy.parents(island, count, random.Random(i), wide=wide) for i in range(draws))
    return {elite.index for elites in chosen for elite in elites}


def test_the_seed_settles_on_every_island_and_others_on_their_own() -> None:
    strategy = told(Evolve, [ok_trial(0, operator="seed"), ok_trial(1, 2.0, island=1)], islands=3)
    assert isinstance(strategy, Evolve)
    assert [[e.index for e in island] for island in strategy.islands] == [[0], [0, 1], [0]]


def test_champions_migrate_around_the_ring() -> None:
    trials = [ok_trial(0, operator="seed"), failed_trial(1), ok_trial(2, 3.0, island=2), ok_trial(3, 2.0, island=0)]
    strategy = told(Evolve, trials, islands=3, migrate_every=4)
    assert isinstance(strategy, Evolve)
    assert [{e.index for e in island} for island in strategy.islands] == [{0, 2, 3}, {0, 3}, {0, 2}]


def test_islands_stay_bounded_and_keep_their_best() -> None:
    trials = (ok_trial(i, 1.0 + (i * 37 % 101) / 100, occupancy=(i % 16) / 16) for i in range(400))
    strategy = told(Evolve, trials, islands=1, population=8)
    assert isinstance(strategy, Evolve)
    assert 8 <= len(strategy.islands[0]) <= 16
    assert max(e.speedup for e in strategy.islands[0]) == 2.0


def test_parents_differ_and_come_from_the_island_or_the_archive() -> None:
    trials = [ok_trial(i, 1.0 + i, island=i % 2, warps=1 << i) for i in range(4)]
    strategy = told(Evolve, trials, islands=2)
    assert indices(strategy, 1, island=0) >= {2}
    for i in range(60):
        two = strategy.parents(1, 2, random.Random(i), wide=False)
        assert len({e.index for e in two}) == 2
    assert indices(strategy, 1, wide=True) == {0, 1, 2, 3}


def test_without_a_share_the_archive_gives_no_parents() -> None:
    trials = [ok_trial(0, 9.0, island=0), ok_trial(1, 3.0, island=1, warps=8)]
    for share, reached in ((0.0, {0}), (1.0, {0, 1})):
        strategy = told(Evolve, trials, islands=2, archive_share=share)
        assert indices(strategy, 1, island=0) == reached
    # Nor where the search looks wide: what has left the island stays out of reach, though it holds a niche.
    many = [ok_trial(i, 1.0 + i, island=0, warps=1 << i) for i in range(6)]
    sparse = told(Evolve, many, islands=1, population=2, archive_share=0.0)
    assert isinstance(sparse, Evolve)
    assert indices(sparse, 1, wide=True) == {e.index for e in sparse.islands[0]} < {0, 1, 2, 3, 4, 5}


def test_hillclimb_goes_from_the_best() -> None:
    trials = [ok_trial(0, 1.0), ok_trial(1, 3.0), ok_trial(2, 2.0), failed_trial(3)]
    strategy = told(HillClimb, trials)
    assert indices(strategy, 1) == {1}
    assert [e.index for e in strategy.parents(0, 2, random.Random(0), wide=True)] == [1, 0]


def test_random_takes_any_correct_candidate_and_does_not_screen() -> None:
    strategy = told(Random, [ok_trial(0, 1.0), ok_trial(1, 9.0), failed_trial(2), ok_trial(3, 0.1)])
    assert indices(strategy, 1) == {0, 1, 3}
    assert not strategy.screens


def test_the_reservoir_is_bounded_and_fair() -> None:
    strategy = told(Random, (ok_trial(i) for i in range(4 * RESERVOIR)))
    found = [e.index for e in strategy.parents(0, 10**6, random.Random(0), wide=False)]
    assert len(found) == RESERVOIR
    assert 0.3 * 4 * RESERVOIR < sum(found) / RESERVOIR < 0.7 * 4 * RESERVOIR


def test_all_strategies_take_any_operator_and_survive_an_empty_start() -> None:
    for kind in STRATEGIES.values():
        strategy = told(kind, [])
        names = {strategy.operator(random.Random(i), ("mix", "nudge"), wide=bool(i % 2)) for i in range(80)}
        assert names == {"mix", "nudge"}
        assert list(strategy.parents(0, 2, random.Random(0), wide=False)) == []
        assert list(strategy.parents(0, 2, random.Random(0), wide=True)) == []
