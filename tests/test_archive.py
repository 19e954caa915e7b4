"""evo.search.archive."""

from __future__ import annotations

import dataclasses

import pytest

from evo.core.records import Build
from evo.search.archive import Archive, Niche, bottleneck, elite_of, niche_of
from tests.engine_support import failed_trial, ok_trial


def test_a_failure_is_no_elite() -> None:
    archive = Archive()
    assert archive.add(failed_trial(1)) is None
    assert archive.best is None
    assert archive.elites() == []


def test_the_best_is_the_fastest_and_the_earlier_of_equals() -> None:
    archive = Archive()
    for index, speedup in enumerate((1.0, 2.0, 2.0, 1.5)):
        archive.add(ok_trial(index, speedup))
    assert archive.best is not None and archive.best.index == 1
    assert archive.seed is not None and archive.seed.index == 0


def test_a_niche_keeps_its_fastest() -> None:
    archive = Archive()
    archive.add(ok_trial(0, 1.0, warps=4))
    archive.add(ok_trial(1, 0.5, warps=4))
    archive.add(ok_trial(2, 0.2, warps=8))
    archive.add(ok_trial(3, 3.0, warps=4))
    assert [(e.index, e.niche.warps) for e in archive.elites()] == [(3, 4), (2, 8)]


@pytest.mark.parametrize(
    ("registers", "shared", "expected"), [(32, 0, (0, 0)), (33, 1, (1, 1)), (128, 16384, (2, 1)), (255, 232448, (3, 4))]
)
def test_resource_classes(registers: int, shared: int, expected: tuple[int, int]) -> None:
    niche = niche_of(ok_trial(1, registers=registers, shared=shared, warps=8, terms={"dram": 1.0}).evaluation)
    assert niche == Niche("dram", *expected, 8)


def test_several_kernels_count_as_the_hungriest() -> None:
    evaluation = ok_trial(1).evaluation
    builds = (Build("a", 40, 0, 70_000, 4, 0.5, "1"), Build("b", 200, 0, 0, 8, 0.25, "2"))
    trial = dataclasses.replace(ok_trial(1), evaluation=dataclasses.replace(evaluation, builds=builds))
    assert niche_of(trial.evaluation)[1:] == (3, 3, 8)
    elite = elite_of(trial)
    assert elite is not None and elite.occupancy == 0.25


def test_the_bottleneck_is_a_share_not_a_sum() -> None:
    """A long case does not outvote a short one."""
    base = ok_trial(1, per_case={"long": 1.0, "short": 1.0}).evaluation
    long, short = base.timings
    timings = (
        dataclasses.replace(long, terms={"dram": 600.0, "launch": 400.0}),
        dataclasses.replace(short, terms={"dram": 0.1, "launch": 0.9}),
    )
    assert bottleneck(dataclasses.replace(base, timings=timings)) == "launch"


def test_without_a_model_the_bottleneck_is_unknown() -> None:
    assert bottleneck(ok_trial(1).evaluation) == "unknown"


def test_the_terms_of_a_measurement_limit_nothing() -> None:
    """A measured timing carries rates and counts (GB/s, pairs); the largest number among them is no bottleneck."""
    evaluation = ok_trial(1, terms={"gb_per_s": 3000.0, "pairs": 30.0}).evaluation
    measured = tuple(dataclasses.replace(timing, estimated=False) for timing in evaluation.timings)
    assert bottleneck(dataclasses.replace(evaluation, timings=measured)) == "unknown"


def test_the_order_of_terms_does_not_matter() -> None:
    terms = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.3}
    backwards = dict(reversed(terms.items()))
    assert bottleneck(ok_trial(1, terms=terms).evaluation) == bottleneck(ok_trial(1, terms=backwards).evaluation) == "d"
