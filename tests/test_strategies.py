"""evo.search.strategies."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.records import BASELINE_OPERATOR, Trial
from evo.search.arbiter import ROUNDS
from evo.search.archive import Archive
from evo.search.strategies import (
    RESERVOIR,
    STRATEGIES,
    BestOfN,
    Evolve,
    HillClimb,
    Random,
    Strategy,
    TritonForge,
    strategy_of,
)
from tests.engine_support import config, failed_trial, ok_trial


def told(kind: type[Strategy], trials: Iterable[Trial], **changes: Any) -> Strategy:
    archive = Archive()
    strategy = kind()
    strategy.start(config(**changes), archive)
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


def test_the_seed_is_a_parent_until_a_kernel_of_the_island_is_faster_in_every_case() -> None:
    seed, worse = {"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 0.99}
    trials = [ok_trial(0, operator="seed", per_case=seed), ok_trial(1, 2.0, per_case=worse)]
    better = ok_trial(2, 1.1, per_case={"a": 1.1, "b": 1.1})
    settings = {"islands": 2, "drops_seed": True}
    assert indices(told(Evolve, trials, **settings, archive_share=0.0), 1) == {0, 1}
    strategy = told(Evolve, [*trials, better], **settings, archive_share=1.0)
    assert indices(strategy, 2) == {1, 2}  # nor does it come back from the archive
    elsewhere = told(Evolve, [*trials, better], **settings, archive_share=0.0)
    assert indices(elsewhere, 1, island=1) == {0} and 0 in indices(elsewhere, 2, wide=True)
    assert 0 in indices(told(Evolve, [*trials, better], islands=2), 2)  # a run of an earlier version


def test_islands_without_a_seed_kernel_start_from_the_first_right_one() -> None:
    pytorch = ok_trial(0, operator=BASELINE_OPERATOR)
    trials = [pytorch, failed_trial(1), ok_trial(2, 0.5, island=2), ok_trial(3, 2.0, island=0)]
    strategy = told(Evolve, trials, islands=3)
    assert isinstance(strategy, Evolve)
    assert [[e.index for e in island] for island in strategy.islands] == [[2, 3], [2], [2]]


@pytest.mark.parametrize("kind", [Evolve, HillClimb, Random, TritonForge])
def test_pytorch_is_never_a_parent(kind: type[Strategy]) -> None:
    trials = [ok_trial(0, operator=BASELINE_OPERATOR), failed_trial(1), ok_trial(2, 0.5)]
    assert indices(told(kind, trials[:2]), 1) == set()
    assert indices(told(kind, trials), 1) == indices(told(kind, trials), 1, wide=True) == {2}


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "anneal"}, "expected one of evolve, random, hillclimb, best-of-n, tritonforge, got 'anneal'"),
        ({"strategy": "best-of-n"}, "strategy best-of-n: expected a model to ask, got none; name one by --model"),
        (
            {"strategy": "tritonforge", "models": (Model("m", "mailbox:a"),), "workers": 2},
            "set --workers 1 and --llm-concurrency 1",
        ),
    ],
)
def test_a_strategy_that_cannot_work_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        strategy_of(config(**changes))
    assert words in str(raised.value)


# --- strategies that ask models --------------------------------------------------------------------------------------

ARMS = ("mutate@m", "repair@m", "mutate@n")
MODELS = {"models": (Model("m", "mailbox:a"), Model("n", "mailbox:b")), "operators": ARMS}


def arms(strategy: Strategy) -> set[str]:
    return {strategy.operator(random.Random(i), ARMS, wide=False) for i in range(20)}


def base(strategy: Strategy) -> list[int]:
    return [e.index for e in strategy.parents(0, 1, random.Random(0), wide=False)]


def test_best_of_n_asks_about_the_seed_and_nothing_else() -> None:
    trials = [ok_trial(0, operator="seed"), ok_trial(1, 3.0), ok_trial(2, 2.0)]
    strategy = told(BestOfN, trials, strategy="best-of-n", **MODELS)
    assert base(strategy) == [0]
    assert not strategy.remembers


def test_tritonforge_goes_on_from_what_the_arbiter_accepts() -> None:
    trials = [ok_trial(0, operator="seed"), ok_trial(1, 1.5), ok_trial(2, 1.4)]
    strategy = told(TritonForge, trials, strategy="tritonforge", **MODELS)
    assert base(strategy) == [1]
    assert arms(strategy) == {"mutate@m", "mutate@n"}


def test_tritonforge_repairs_a_failure_twice_at_most_within_a_round() -> None:
    trials = [ok_trial(0, operator="seed"), failed_trial(1)]
    assert arms(told(TritonForge, trials, strategy="tritonforge", **MODELS)) == {"repair@m"}
    trials += [failed_trial(2, operator="repair@m"), failed_trial(3, operator="repair@m")]
    strategy = told(TritonForge, trials, strategy="tritonforge", **MODELS)
    assert arms(strategy) == {"mutate@m", "mutate@n"}
    assert isinstance(strategy, TritonForge)
    assert strategy._arbiter.rounds == 1


def test_tritonforge_without_repairs_counts_each_failure_as_a_round() -> None:
    changes = {**MODELS, "operators": ("mutate@m",)}
    trials = [ok_trial(0, operator="seed"), *(failed_trial(i) for i in range(1, 4))]
    assert "after 3 rounds" in told(TritonForge, trials, strategy="tritonforge", **changes).ended


def test_tritonforge_ends_after_its_rounds() -> None:
    trials = [ok_trial(0, operator="seed"), *(ok_trial(i, 1.2**i) for i in range(1, ROUNDS + 1))]
    assert not told(TritonForge, trials[:-1], strategy="tritonforge", **MODELS).ended
    assert f"after {ROUNDS} rounds" in told(TritonForge, trials, strategy="tritonforge", **MODELS).ended
