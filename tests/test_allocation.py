"""The budget of a campaign by headroom and progress: the policy by hand, its file, and a campaign that goes by it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from analysis.benchmarks import bench_allocation
from evo.campaign import allocation
from evo.campaign.allocation import Budgets, RunProgress, first_budget, next_budgets, read_budgets, write_budgets
from evo.cli.main import main
from evo.core.errors import StoreError
from evo.storage.queries import RunReader
from tests.cli_support import install

LEVEL = RunProgress([1.0] * 9)  # nothing in 8 candidates
RISING = RunProgress([1.0] * 5 + [1.5, 1.5, 2.0, 2.0])
EARLY = RunProgress([1.0, 2.0] + [2.0] * 7)  # nothing lately


def test_recent_progress_and_headroom_weigh() -> None:
    assert RISING.weight == pytest.approx(math.log(2) + allocation.HOPE)
    assert LEVEL.weight == EARLY.weight == allocation.HOPE
    near = RunProgress(RISING.curve, attained=2**-0.25)
    assert near.weight == pytest.approx(RISING.weight / 4)
    assert RunProgress(RISING.curve, attained=0.1).weight == RISING.weight
    assert RunProgress(RISING.curve, attained=1.2).weight == 0


def test_all_is_given_in_rounds_and_no_more() -> None:
    runs = {"a": LEVEL, "b": RISING, "c": EARLY}
    assert first_budget(32) == 8
    first = next_budgets(runs, 32, 1)
    assert sum(first.values()) - 3 * 8 == (3 * 32 - 3 * 8) // 2  # half of what is left
    assert first["b"] > 4 * first["a"] / 2 and first["a"] == first["c"] > 8
    after = {name: RunProgress([*run.curve, *[run.curve[-1]] * (first[name] - 8)]) for name, run in runs.items()}
    second = next_budgets(after, 32, 2)
    assert sum({**first, **second}.values()) == 3 * 32 and max(second.values()) <= 64
    assert next_budgets(after, 32, 3) == {}


def test_what_a_run_that_ended_left_goes_to_the_others() -> None:
    over = RunProgress(RISING.curve, over=True)
    given = next_budgets({"a": LEVEL, "b": over}, 32, allocation.ROUNDS)
    assert given == {"a": 2 * 32 - 8}
    many = {str(n): LEVEL for n in range(10)}
    assert sum(next_budgets(many, 32, allocation.ROUNDS).values()) == 320
    assert next_budgets({"a": RunProgress([1.0] * 65)}, 32, 1) == {}  # more than its share is spent


def test_budgets_are_kept_in_the_campaigns_folder(tmp_path: Path) -> None:
    assert read_budgets(tmp_path, 32) == Budgets(0, 8, {})
    write_budgets(tmp_path, Budgets(1, 8, {"a/full/seed-0": 20}))
    found = read_budgets(tmp_path, 32)
    assert found.budget("a/full/seed-0") == 20 and found.budget("b/full/seed-0") == 8 and found.round_number == 1
    (tmp_path / allocation.FILE).write_text("{}")
    with pytest.raises(StoreError, match=r"allocation\.json, got: KeyError"):
        read_budgets(tmp_path, 32)


def test_a_campaign_goes_by_it_and_goes_on_after_a_stop(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    install(monkeypatch.setattr)
    command = ["bench", "softmax", "rotary", "matmul", "--budget", "8", "--allocation", "headroom", "--out", "out"]
    assert main([*command, "--max-candidates", "12"]) == 3  # in a later round
    capsys.readouterr()
    assert main([*command, "--max-candidates", "100"]) == 0
    said = capsys.readouterr().out
    assert "round 2 of 2" in said
    budgets = json.loads((tmp_path / "out" / allocation.FILE).read_text())["budgets"]
    spent = {}
    for run in budgets:
        with RunReader(tmp_path / "out" / "runs" / run) as reader:
            spent[run] = reader.spent()
            assert reader.info.config.budget == budgets[run] == spent[run]
    assert sum(spent.values()) == 3 * 8 and max(spent.values()) <= 16
    assert main([*command, "--max-candidates", "100"]) == 0  # nothing is left
    assert "round" not in capsys.readouterr().out
    assert "3 kernels: 3 searched" in (tmp_path / "out" / "summary.md").read_text()


def test_strategies_are_compared_at_equal_budgets(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    both = ["bench", "softmax", "--strategy", "evolve,random", "--allocation", "headroom"]
    assert main(both) == 2 and "compared at equal budgets; leave it out" in capsys.readouterr().err
    assert main(["bench", "softmax", "--allocation", "all"]) == 2
    assert "--allocation: expected equal or headroom, got 'all'" in capsys.readouterr().err


def test_the_simulation_spends_the_same_and_gains_on_kernels_it_was_not_chosen_on() -> None:
    path = Path(__file__).parent.parent / bench_allocation.TRIALS
    runs = bench_allocation.curves(path, 64)
    halves = bench_allocation.halves(runs)
    assert len(runs) == 168 and not set(halves["development"]) & set(halves["test"])
    drawn = dict(list(runs.items())[:24])
    assert sum(bench_allocation.allocated(drawn, 32).values()) == 24 * 32
    found = bench_allocation.compare(halves["test"], 24, 32, draws=200, seed=0)
    assert found["equal"] < found["policy"] < found["twice the budget"]
