"""The speedup formula."""

import dataclasses
import json
import math

import pytest

from evo.core.records import (
    Build,
    Case,
    Check,
    Evaluation,
    Timing,
    Verdict,
    evaluation_from_json,
    evaluation_to_json,
    score,
)

BUILD = Build("k", 32, 0, 0, 4, 1.0, "abc")


def evaluation(*ratios: float, estimated: bool = True) -> Evaluation:
    timings = tuple(
        Timing(f"case{i}", (10.0,), (10.0 * r,), r, (r / 1.1, r * 1.1), estimated) for i, r in enumerate(ratios)
    )
    return Evaluation("x", Verdict.OK, "done", builds=(BUILD,), check=Check(1, "c", 0.1, 1e-6), timings=timings)


def test_geometric_mean_over_the_cases():
    fitness = score(evaluation(2.0, 8.0))
    assert fitness is not None
    assert fitness.speedup == pytest.approx(4.0)
    assert fitness.ci95 == (pytest.approx(4.0 / 1.1), pytest.approx(4.4))
    assert fitness.per_case == {"case0": 2.0, "case1": 8.0}
    assert fitness.estimated


def test_cases_count_by_their_weights():
    whole = evaluation(2.0, 16.0)
    weighted = [dataclasses.replace(t, weight=w) for t, w in zip(whole.timings, (3.0, 1.0), strict=True)]
    fitness = score(dataclasses.replace(whole, timings=tuple(weighted)))
    assert fitness is not None
    assert fitness.speedup == pytest.approx((2.0**3 * 16.0) ** 0.25)
    assert fitness.ci95 == (pytest.approx(fitness.speedup / 1.1), pytest.approx(fitness.speedup * 1.1))


def test_timings_of_earlier_versions_weigh_the_same():
    whole = evaluation(2.0, 8.0)
    raw = json.loads(evaluation_to_json(whole))
    for timing in raw["timings"]:
        assert timing.pop("weight") == 1.0
    assert evaluation_from_json(json.dumps(raw)) == whole


@pytest.mark.parametrize("weight", [0, -1.0, math.inf, True, "1"])
def test_a_weight_is_a_positive_number(weight):
    with pytest.raises(ValueError, match="weight must be a positive number"):
        Case("a", {"N": 1}, weight=weight)


def test_one_estimated_case_marks_the_whole():
    assert score(evaluation(2.0, estimated=False)).estimated is False


def measured(case: str, ratio: float, ci95: tuple[float, float], counts: float) -> Timing:
    return Timing(case, (10.0,), (10.0 * ratio,), ratio, ci95, False, {"counts": counts})


def test_a_measured_difference_that_does_not_count_is_none():
    whole = evaluation(1.0, estimated=False)
    timings = (measured("a", 1.21, (1.2, 1.22), 1.0), measured("b", 1.01, (1.005, 1.02), 0.0))
    fitness = score(dataclasses.replace(whole, timings=timings))
    assert fitness.per_case == {"a": 1.21, "b": 1.0}
    assert fitness.speedup == pytest.approx(1.1)
    assert fitness.ci95 == (pytest.approx(1.2**0.5), pytest.approx((1.22 * 1.02) ** 0.5))
    slower = score(dataclasses.replace(whole, timings=(measured("a", 0.99, (0.98, 0.995), 0.0),)))
    assert (slower.speedup, slower.ci95) == (pytest.approx(1.0), (pytest.approx(0.98), pytest.approx(1.0)))


def test_a_failure_has_no_fitness():
    assert score(Evaluation("x", Verdict.WRONG, "verify", message="off by a lot")) is None
