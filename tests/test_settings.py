"""evo.core.settings and evo.search.budget."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.records import Trial, Verdict
from evo.core.settings import RunConfig
from evo.search.budget import Budget, gpu_seconds, in_words
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
        ({"gpu_seconds": 0}, "--gpu-seconds: expected a number above 0, got 0; leave it out for no limit"),
        ({"gpu_seconds": float("inf")}, "--gpu-seconds: expected a number above 0, got inf"),
        ({"gpu_seconds": "60"}, "--gpu-seconds: expected a number above 0, got '60'"),
        ({"gpu_seconds": True}, "--gpu-seconds: expected a number above 0, got True"),
        ({"device": "tpu"}, "device: expected one of cpu, gpu, got 'tpu'"),
        ({"operators": ()}, "expected at least one name, got none"),
        ({"operators": ("mix", "mix")}, "expected each name once, got mix twice"),
    ],
)
def test_what_is_out_of_range_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(**changes)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"surrogate": 3}, "surrogate: expected true or false, got 3"),
        ({"strategy": ["a"]}, r"strategy: expected a text, got \['a'\]"),
        ({"operators": "ab"}, "operators: expected a list of names, got 'ab'"),
        ({"operators": (5,)}, r"operators: expected a list of names, got \(5,\)"),
        ({"gpus": 2}, "gpus: expected a text or nothing, got 2"),
    ],
)
def test_what_is_of_another_type_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**changes)


def test_a_config_of_before_there_were_gpu_seconds_is_read() -> None:
    raw = json.loads(config(seed=7).to_json())
    del raw["gpu_seconds"]
    assert RunConfig.from_json(json.dumps(raw)) == config(seed=7)


def test_without_a_gpu_there_are_no_gpu_seconds() -> None:
    assert config(gpu_seconds=60).with_device("gpu").gpu_seconds == 60
    with pytest.raises(ConfigError, match="60 GPU seconds: expected a GPU that measures, got estimated times; run it"):
        config(gpu_seconds=60).with_device("cpu")


def test_where_a_gpu_measures_nothing_is_estimated_unless_a_number_was_set() -> None:
    for name in ("screen_budget", "tune_budget"):
        estimates = {number: getattr(config(**{name: number}).with_device("gpu"), name) for number in (5, 12)}
        assert (RunConfig.screen_budget, RunConfig.tune_budget, estimates) == (12, 12, {5: 5, 12: 0})
        assert getattr(config().with_device("cpu"), name) == 12


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


def took(trial: Trial, **seconds: float) -> Trial:
    return dataclasses.replace(trial, evaluation=dataclasses.replace(trial.evaluation, seconds=seconds))


def test_gpu_seconds_are_those_of_verifying_and_timing() -> None:
    assert gpu_seconds(took(ok_trial(1), compile=4.0, time=1.5, certify=7.0, wait=20.0).evaluation) == 1.5
    assert gpu_seconds(took(failed_trial(1), time=2.0).evaluation) == 2.0
    assert gpu_seconds(failed_trial(1, Verdict.REJECTED).evaluation) == 0.0
    assert gpu_seconds(took(failed_trial(1, Verdict.INFRASTRUCTURE), time=2.0).evaluation) == 0.0  # no fault of its own


def test_a_budget_is_over_with_whichever_is_spent_first() -> None:
    budget = Budget(3, 2.0)
    budget.spend(took(ok_trial(0, operator="seed"), time=100.0))
    assert (budget.left(), budget.spent_gpu_s, budget.over) == (3, 0.0, False)
    budget.spend(took(ok_trial(1), time=1.0))
    assert (budget.left(), budget.over) == (2, False)
    budget.spend(took(ok_trial(2), time=1.5))
    assert (budget.left(), budget.spent_gpu_s, budget.over) == (0, 2.5, True)
    few = Budget(1, 2.0)
    few.spend(took(ok_trial(1), time=0.1))
    assert few.over and few.left() == 0


def test_budgets_in_words() -> None:
    assert in_words(24, None) == "24 candidates"
    assert in_words(24, 60.0) == "60 GPU seconds (24 candidates at most)"
