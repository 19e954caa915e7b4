"""analysis.outcomes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from analysis.outcomes import load, outcome_of, save
from evo.core.errors import StoreError
from evo.core.records import CERTIFICATE, PASSED, Certificate, Fitness, Trial, Verdict
from evo.storage.best import Conclusion, write_result
from tests.ablation_support import campaign
from tests.engine_support import create, failed_trial, ok_trial


def with_interval(index: int, speedup: float, low: float, high: float) -> Trial:
    trial = ok_trial(index, speedup)
    return Trial(trial.proposal, trial.evaluation, Fitness(speedup, (low, high), {"square": speedup}, estimated=True))


def with_certificate(trial: Trial, said: str) -> Trial:
    return dataclasses.replace(trial, evaluation=dataclasses.replace(trial.evaluation, environment={CERTIFICATE: said}))


def test_only_gains_beyond_their_interval_count(tmp_path: Path) -> None:
    with create(tmp_path, budget=7) as store:
        for trial in (
            ok_trial(0),
            failed_trial(1),
            with_interval(2, 1.4, 0.9, 2.2),  # may be none
            with_certificate(with_interval(3, 1.3, 1.1, 1.5), PASSED),
            with_interval(4, 1.2, 1.1, 1.3),
            with_certificate(with_interval(5, 2.0, 1.5, 2.6), "not run: no GPU"),
        ):
            store.proposed(trial.proposal)
            store.finished(trial)
    found = outcome_of(tmp_path, "full")
    assert found.certified == 1.3
    assert found.curve == (1.0, 1.0, 1.3, 1.3, 2.0, 2.0, 2.0)  # level to the end of the budget
    assert (found.best, found.ci95, found.success) == (2.0, (1.5, 2.6), True)
    assert (found.variant, found.task, found.seed, found.budget, found.estimated) == ("full", "instant", 0, 7, True)
    assert found.verdicts == {"ok": 5, "wrong": 1}
    assert (found.task_hash, found.target) == ("hash", "sm_90")


def test_what_a_full_certificate_refused_is_no_gain(tmp_path: Path) -> None:
    trials = [ok_trial(0), with_interval(1, 2.0, 1.5, 2.6), with_interval(2, 1.3, 1.1, 1.5)]
    with create(tmp_path, budget=2) as store:
        for trial in trials:
            store.proposed(trial.proposal)
            store.finished(trial)
        assert outcome_of(tmp_path).certified == 1.0
        passed, refused = (Certificate("id", verdict) for verdict in (Verdict.OK, Verdict.RUNTIME_ERROR))
        write_result(tmp_path, store.info, trials[0], Conclusion(trials[2], passed, ((1, refused),)))
    found = outcome_of(tmp_path)
    assert (found.curve, found.certified, found.successes) == ((1.0, 1.3), 1.3, 1)


def test_over_gpu_seconds_a_curve_has_steps(tmp_path: Path) -> None:
    with create(tmp_path, budget=7, gpu_seconds=10.0) as store:
        for trial, seconds in (
            (ok_trial(0), 100.0),
            (failed_trial(1), 2.0),
            (with_interval(2, 1.3, 1.1, 1.5), 3.0),
            (with_interval(3, 1.2, 1.1, 1.3), 1.0),
            (failed_trial(4, Verdict.INFRASTRUCTURE), 50.0),
            (with_interval(5, 2.0, 1.5, 2.6), 3.0),
            (with_interval(6, 4.0, 3.0, 5.0), 1.5),  # done after 10.5
        ):
            took = dataclasses.replace(trial.evaluation, seconds={"time": seconds})
            store.proposed(trial.proposal)
            store.finished(dataclasses.replace(trial, evaluation=took))
    found = outcome_of(tmp_path)
    assert (found.at, found.curve) == ((0.0, 5.0, 9.0), (1.0, 1.3, 2.0))
    assert (found.best, found.ci95, found.gpu_seconds) == (2.0, (1.5, 2.6), 10.0)
    assert (found.gpu_spent, found.successes) == (10.5, 3)  # spent is what was spent; of the faster, three were in time
    # log 1.3 for 4 seconds and log 2 for 1 of 10, against log 2 for all of them.
    assert found.area(2.0) == pytest.approx((4 * math.log2(1.3) + 1) / 10)
    save(tmp_path / "outcomes.json", [found])
    assert load(tmp_path / "outcomes.json") == [found]


def test_outcomes_of_before_there_were_gpu_seconds_are_read(tmp_path: Path) -> None:
    found = campaign({"full": 1.0}, tasks=1, seeds=1)
    save(tmp_path / "outcomes.json", found)
    text = (tmp_path / "outcomes.json").read_text().replace(', "gpu_seconds": null, "at": []', "")
    text = text.replace(', "task_hash": "", "target": ""', "")
    assert "gpu_seconds" not in text and "task_hash" not in text
    (tmp_path / "outcomes.json").write_text(text)
    (again,) = load(tmp_path / "outcomes.json")
    assert (again.gpu_seconds, again.at, again.task_hash, again.best) == (
        None,
        (),
        "",
        pytest.approx(found[0].best, rel=1e-5),
    )


def test_a_run_that_gained_nothing_is_a_failure_at_one(tmp_path: Path) -> None:
    with create(tmp_path, budget=2) as store:
        for trial in (ok_trial(0), failed_trial(1), with_interval(2, 1.4, 0.9, 2.2)):
            store.proposed(trial.proposal)
            store.finished(trial)
    found = outcome_of(tmp_path)
    assert (found.curve, found.success, found.ci95) == ((1.0, 1.0), False, (1.0, 1.0))


def test_outcomes_survive_their_file_to_six_digits(tmp_path: Path) -> None:
    found = campaign({"full": 1.0, "random": 0.8})
    save(tmp_path / "outcomes.json", found, campaign="campaign.json")
    again = load(tmp_path / "outcomes.json")
    assert [(o.variant, o.task, o.seed, o.verdicts) for o in again] == [
        (o.variant, o.task, o.seed, o.verdicts) for o in found
    ]
    for a, b in zip(found, again, strict=True):
        assert b.curve == pytest.approx(a.curve, rel=1e-5) and b.ci95 == pytest.approx(a.ci95, rel=1e-5)
    save(tmp_path / "again.json", again, campaign="campaign.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "outcomes.json").read_bytes()


def test_a_file_of_an_earlier_version_says_arm(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    save(path, campaign({"full": 1.0}))
    found = load(path)
    path.write_text(path.read_text().replace('"variant"', '"arm"').replace('"format": 2', '"format": 1'))
    assert load(path) == found and found[0].variant == "full"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 7}', '{"format": 2, "outcomes": [{"variant": "full"}]}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "outcomes.json").write_text(text)
    with pytest.raises(StoreError, match="expected the outcomes of runs"):
        load(tmp_path / "outcomes.json")
