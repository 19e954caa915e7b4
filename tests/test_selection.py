"""evo.search.selection."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

from evo.search.archive import Elite, elite_of
from evo.search.selection import lexicase, survivors
from tests.engine_support import ok_trial


def elite(index: int, *cases: float, occupancy: float = 0.5) -> Elite:
    per_case = {f"case{i}": ratio for i, ratio in enumerate(cases)}
    speedup = sum(cases) / len(cases)
    made = elite_of(ok_trial(index, speedup, per_case=per_case, occupancy=occupancy))
    assert made is not None
    return made


def test_lexicase_finds_specialists() -> None:
    pool = [elite(1, 9.0, 1.0), elite(2, 1.0, 9.0), elite(3, 3.0, 3.0), elite(4, 1.0, 1.0), elite(5, 1.0, 1.2)]
    counts = Counter(lexicase(pool, 1, random.Random(seed))[0].index for seed in range(200))
    assert counts[1] > 50 and counts[2] > 50
    assert 4 not in counts


def test_lexicase_gives_different_parents() -> None:
    pool = [elite(i, float(i)) for i in range(1, 5)]
    for seed in range(50):
        chosen = lexicase(pool, 3, random.Random(seed))
        assert len({e.index for e in chosen}) == 3
    assert len(lexicase(pool, 9, random.Random(0))) == 4
    assert lexicase([], 2, random.Random(0)) == []


def test_lexicase_is_keyed_and_leaves_the_global_generator_alone() -> None:
    pool = [elite(i, 1.0 + i % 3, 1.0 + i % 2) for i in range(12)]
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = [lexicase(pool, 2, random.Random(seed)) for seed in range(20)]
    assert random.random() == expected
    random.seed(99)
    assert [lexicase(pool, 2, random.Random(seed)) for seed in range(20)] == first


def test_lexicase_moves_its_own_generator_on() -> None:
    pool = [elite(i, 1.0) for i in range(12)]
    rng = random.Random(0)
    assert len({lexicase(pool, 1, rng)[0].index for _ in range(40)}) > 5


def test_survivors_keep_the_front_and_the_fastest() -> None:
    fast, frugal, specialist = elite(1, 5.0, 5.0), elite(2, 1.0, 1.0, occupancy=1.0), elite(3, 6.0, 1.0)
    dominated = [elite(i, 1.0 + i / 100, 1.0) for i in range(4, 12)]
    kept = survivors([*dominated, fast, frugal, specialist], 3)
    assert {e.index for e in kept} == {1, 2, 3}


def test_the_fastest_survives_a_crowded_front() -> None:
    """All are on one front; the fastest over all cases sits in its crowded middle."""
    front = [elite(i, float(i), float(21 - i)) for i in range(1, 21)]
    fastest = elite(99, 10.9, 10.7)
    assert fastest.index in {e.index for e in survivors([*front, fastest], 3)}


def test_survivors_keep_all_of_a_small_population_and_its_order() -> None:
    pool = [elite(3, 1.0), elite(1, 2.0)]
    assert survivors(pool, 2) == pool
    kept = survivors([elite(i, 1.0 + i % 5) for i in range(20)], 6)
    assert len(kept) == 6
    assert [e.index for e in kept] == sorted(e.index for e in kept)


def test_only_selection_imports_deap_and_only_when_used() -> None:
    code = (
        "import sys, evo.cli.main, evo.search.engine, evo.search.selection; "
        "sys.exit('deap' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
