"""evo.search.bandit."""

from __future__ import annotations

import random

import pytest

from evo.search.bandit import Bandit, reward


def test_the_arm_that_pays_is_chosen_most() -> None:
    bandit = Bandit(("good", "bad"))
    for _ in range(40):
        bandit.credit("good", 0.8)
        bandit.credit("bad", 0.0)
    rng = random.Random(0)
    chosen = [bandit.choose(rng) for _ in range(200)]
    assert chosen.count("good") > 180
    assert bandit.means()["good"] > bandit.means()["bad"]


def test_no_arm_is_given_up() -> None:
    bandit = Bandit(("good", "bad"))
    for _ in range(5):
        bandit.credit("bad", 0.0)
    rng = random.Random(0)
    assert "bad" in {bandit.choose(rng) for _ in range(500)}


def test_old_success_fades() -> None:
    bandit = Bandit(("early", "late"))
    for _ in range(30):
        bandit.credit("early", 1.0)
    praised = bandit.means()["early"]
    for _ in range(100):
        bandit.credit("late", 0.5)
    assert bandit.means()["early"] < praised


def test_the_seed_is_no_arm() -> None:
    bandit = Bandit(("a",))
    bandit.credit("seed", 1.0)
    assert bandit.means() == {"a": 0.5}


def test_choices_follow_the_generator() -> None:
    bandit = Bandit(("a", "b", "c"))
    first, second = ([bandit.choose(random.Random(i)) for i in range(30)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("speedup", "parent", "expected"),
    [
        (None, 1.0, 0.0),
        (1.0, 1.0, 0.0),
        (1.009, 1.0, 0.0),
        (2.0, 1.0, 1.0),
        (8.0, 1.0, 1.0),
        (0.4, 0.2, 1.0),
        (1.0, 3.0, 0.0),
    ],
)
def test_reward(speedup: float | None, parent: float, expected: float) -> None:
    assert reward(speedup, parent) == expected


def test_any_improvement_is_worth_half() -> None:
    assert 0.5 < reward(1.1, 1.0) < reward(1.5, 1.0) < 1.0
