"""evo compare and analysis.regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.outcomes import Outcome, save
from analysis.regression import find_regression, pair_up
from evo.cli.main import main
from evo.core.records import StopReason
from evo.search.termination import came_to_end
from evo.storage.queries import RunInfo
from evo.storage.store import Store
from tests.ablation_support import campaign, outcome
from tests.engine_support import SlowEvaluator, config, create, search


def write(folder: Path, outcomes: list[Outcome]) -> str:
    folder.mkdir()
    save(folder / "outcomes.json", outcomes)
    return str(folder)


def test_exit_codes_for_ci(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", campaign({"full": 1.0}))
    slower = write(tmp_path / "slower", campaign({"full": 0.8}))
    faster = write(tmp_path / "faster", campaign({"full": 1.3}))
    assert main(["compare", a, slower]) == 1
    assert "B / A, best speedup: 0.800 [" in (said := capsys.readouterr().out) and "B is worse" in said
    assert main(["compare", a, faster]) == 0
    assert "B is better" in capsys.readouterr().out
    assert main(["compare", a, a]) == 0
    assert "no difference beyond noise" in capsys.readouterr().out
    assert main(["compare", a, str(tmp_path / "none")]) == 2
    assert "found none" in capsys.readouterr().err


def test_the_same_campaign_twice_is_called_worse_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(4)
    worse = 0
    for _ in range(200):
        ends = 1 + rng.gamma(2.0, size=(2, 2, 4))
        pairs = [
            (outcome("", f"t{t}", s, [ends[0, t, s]]), outcome("", f"t{t}", s, [ends[1, t, s]]))
            for t in range(2)
            for s in range(4)
        ]
        worse += find_regression(pairs).worse
    assert worse <= 19  # of 200: at a true rate of 5%, more come up once in 250


def test_single_runs_are_judged_by_their_own_intervals() -> None:
    def pair(b: float, width: float) -> list[tuple[Outcome, Outcome]]:
        two = (outcome("", "x", 0, [e], ci95=(e / width, e * width)) for e in (2.0, b))
        return [(next(two), next(two))]

    assert find_regression(pair(1.9, 1.01)).worse and find_regression(pair(2.1, 1.01)).better
    noisy = find_regression(pair(1.9, 1.1))
    assert not noisy.worse and not noisy.better and noisy.p is None
    # Two independent half-widths of log 1.1 add up to sqrt(2) of one.
    assert noisy.ci == pytest.approx((0.95 / 1.1 ** (2**0.5), 0.95 * 1.1 ** (2**0.5)))


def test_runs_are_read_from_their_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, strategy in (("a", "evolve"), ("b", "random")):
        for seed in range(2):
            with create(tmp_path / name / str(seed), seed=seed, strategy=strategy, budget=10) as store:
                search(store)
    assert main(["compare", str(tmp_path / "a" / "0"), str(tmp_path / "a" / "0")]) == 0
    assert "over 1 pair\n" in (said := capsys.readouterr().out) and "(estimated)" in said and "fewer than 5" in said
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) in (0, 1)
    assert "over 2 pairs" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "a" / "0"), str(tmp_path / "b")]) in (0, 1)
    assert "1 run has no partner" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused() -> None:
    a = [outcome("", "x", 0, [2.0], task_hash="aa", target="sm_90")]
    for b, words in (
        (outcome("", "y", 0, [2.0]), "no variant, task and seed"),
        (outcome("", "x", 0, [2.0, 2.0]), "x, seed 0: budgets differ, 1 candidates and 2 candidates"),
        (outcome("", "x", 0, [2.0], gpu_seconds=60.0, at=(0.0,)), "1 candidates and 60 GPU seconds .1 candidates at"),
        (outcome("", "x", 0, [2.0], estimated=True), "one is estimated"),
        (
            outcome("", "x", 0, [2.0], task_hash="bb"),
            "x, seed 0: these are different tasks of one name, of hash aa and bb",
        ),
        (outcome("", "x", 0, [2.0], task_hash="aa", target="sm_80"), "targets differ, sm_90 and sm_80"),
    ):
        with pytest.raises(ValueError, match=words):
            pair_up(a, [b])


def test_tasks_and_targets_that_are_not_known_are_not_compared() -> None:
    known = outcome("", "x", 0, [2.0], task_hash="aa", target="sm_90")
    for other in (known, outcome("", "x", 0, [2.0])):
        assert pair_up([known], [other]) == [(known, other)]
        assert pair_up([other], [known]) == [(other, known)]


def test_without_pairs_both_sides_are_listed() -> None:
    a = [outcome("full", f"t{n:02}", n % 2, [2.0]) for n in range(14)]
    with pytest.raises(ValueError, match="no variant") as failure:
        pair_up(a, [outcome("", "x", 3, [2.0])])
    said = str(failure.value)
    assert "A has variants full, tasks t00, t01, " in said and "t11 and 2 more, seeds 0, 1; " in said
    assert said.endswith("B has variants none (runs of their own), tasks x, seeds 3")


def test_runs_of_different_tasks_in_folders_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, task_hash in (("a", "aa"), ("b", "bb")):
        info = RunInfo(config(task=f"/{name}/mine", budget=1), task_hash, {"evo": "1"}, {})
        Store.create(tmp_path / name, info).close()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "mine, seed 0: these are different tasks of one name, of hash aa and bb" in capsys.readouterr().err


def test_runs_that_did_not_come_to_their_end_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part, none = (tmp_path / name for name in ("whole", "part", "none"))
    with create(whole, budget=10) as store:
        search(store)
    evaluator = SlowEvaluator()
    with create(part, budget=10) as store:
        search(store, evaluator, stop=lambda: len(evaluator.evaluated) >= 4)
    create(none, budget=10).close()
    for a, b, at in ((whole, part, "at 4 of 10"), (part, whole, "at 4 of 10"), (none, none, "at 0 of 10")):
        assert main(["compare", str(a), str(b)]) == 2
        said = capsys.readouterr().err
        assert f"{at} candidates" in said and f"`evo resume {none if none == a else part}`" in said
        assert (f"beside {whole} at 10 of 10 candidates (budget spent)" in said) is (a != b)
        assert said.count("evo resume") == 1


def test_a_run_that_ended_before_its_budget_was_spent_is_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with create(tmp_path / name, operators=("mix",), budget=10) as store:
            assert search(store).reason == "search space exhausted"
            store.event("refused", "as by a certificate, after the end")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


@pytest.mark.parametrize("reason", [reason for reason in StopReason if not reason.final])
def test_what_an_engine_says_last_tells_an_end_from_a_pause(tmp_path: Path, reason: StopReason) -> None:
    with create(tmp_path, budget=2) as store:
        store.event("ended", reason)
        assert not came_to_end(store)
        store.event("ended", "limit on tokens or dollars reached")
        assert came_to_end(store)
        store.event("resumed", "")
        assert not came_to_end(store)  # it may have been killed since


def test_a_run_that_spent_its_budget_came_to_its_end_unless_its_models_fell_silent(tmp_path: Path) -> None:
    with create(tmp_path, budget=2) as store:
        search(store)
        store.event("resumed", "")
        assert came_to_end(store)
        store.event("ended", StopReason.SILENT)
        store.event("resumed", "")
        assert not came_to_end(store)


def test_an_unfinished_run_without_a_partner_does_no_harm(tmp_path: Path) -> None:
    with create(tmp_path / "a", budget=5) as store:
        search(store)
    with create(tmp_path / "b" / "0", budget=5) as store:
        search(store)
    create(tmp_path / "b" / "1", seed=1, budget=5).close()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_what_is_nothing_to_compare_names_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/campaign.json").write_text("{}")
    for name, words in (("nosuch", "check the path"), ("c", f"`evo ablate {tmp_path / 'c'}` writes")):
        assert main(["compare", str(tmp_path / name), str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
