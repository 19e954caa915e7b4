"""evo.config and evo.budget."""

from __future__ import annotations

from typing import Any

import pytest

from evo.budget import Budget
from evo.config import RunConfig
from evo.errors import ConfigError
from evo.llm.models import Model
from tests.engine_support import config, failed_trial, ok_trial, proposal

MODEL = Model("m", "mailbox:a")


def test_a_config_survives_its_json() -> None:
    made = config(seed=7, strategy="random", workers=3)
    assert RunConfig.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": 0}, "budget: expected an integer from 1 to 10000000, got 0"),
        ({"budget": True}, "budget: expected an integer"),
        ({"seed": -1}, "seed: expected"),
        ({"seed": 2**63}, "seed: expected"),
        ({"islands": 0}, "islands: expected"),
        ({"workers": 0}, "workers: expected an integer from 1 to 1024, got 0; set --workers"),
        ({"population": 1}, "population: expected"),
        ({"migrate_every": 0}, "migrate_every: expected"),
        ({"screen_budget": -1}, "screen_budget: expected"),
        ({"archive_share": 1.5}, "archive_share: expected a number from 0 to 1, got 1.5"),
        ({"archive_share": True}, "archive_share: expected a number"),
        ({"strategy": "anneal"}, "expected one of evolve, random, hillclimb, best-of-n, tritonforge, got 'anneal'"),
        ({"strategy": "best-of-n"}, "strategy best-of-n: expected a model to ask, got none; name one by --model"),
        ({"strategy": "tritonforge", "models": (MODEL,), "workers": 2}, "set --workers 1 and --llm-concurrency 1"),
        ({"device": "tpu"}, "device: expected one of cpu, gpu, got 'tpu'"),
        ({"operators": ()}, "expected at least one name, got none"),
        ({"operators": ("mix", "mix")}, "expected each name once, got mix twice"),
    ],
)
def test_what_is_out_of_range_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(**changes)
    assert words in str(raised.value)


def test_only_the_budget_changes() -> None:
    assert config(seed=3).with_budget(99) == config(seed=3, budget=99)


def test_the_budget_counts_all_verdicts_but_not_the_seed() -> None:
    budget = Budget(2)
    budget.reserve(proposal(0, operator="seed"))
    budget.spend(ok_trial(0, operator="seed"))
    assert (budget.spent, budget.left()) == (0, 2)
    budget.reserve(proposal(1))
    assert budget.left() == 1
    budget.reserve(proposal(2))
    assert budget.left() == 0
    budget.spend(failed_trial(2))
    budget.spend(ok_trial(1))
    assert (budget.spent, budget.left()) == (2, 0)


def test_what_was_replayed_was_never_reserved() -> None:
    budget = Budget(1)
    budget.spend(ok_trial(1))
    budget.spend(ok_trial(2))  # a budget lowered afterwards
    assert budget.left() == 0
