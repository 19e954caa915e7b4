"""evo.search.arbiter."""

from __future__ import annotations

import dataclasses
import itertools

from evo.core.records import Fitness, Timing, Trial
from evo.search.arbiter import CEILING, PATIENCE, ROUNDS, Arbiter, Decision
from tests.engine_support import failed_trial, ok_trial


def measured(index: int, speedup: float, low: float, high: float, *, share: float = 0.5, **changes: float) -> Trial:
    trial = ok_trial(index, speedup)
    timing = Timing("a", (1.0,), (1.0,), speedup, (low, high), False, {"of_copy_rate": share})
    builds = tuple(dataclasses.replace(b, **changes) for b in trial.evaluation.builds)  # type: ignore[arg-type]
    evaluation = dataclasses.replace(trial.evaluation, timings=(timing,), builds=builds)
    return dataclasses.replace(trial, evaluation=evaluation, fitness=Fitness(speedup, (low, high), {}, False))


PARENT = measured(0, 1.5, 1.45, 1.55)


def test_a_child_is_accepted_where_the_intervals_are_apart() -> None:
    assert Arbiter().decide(PARENT, measured(1, 1.7, 1.6, 1.8)) is Decision.ACCEPT
    assert Arbiter().decide(PARENT, measured(1, 1.6, 1.5, 1.7)) is Decision.CONTINUE
    assert Arbiter().decide(PARENT, measured(1, 1.2, 1.1, 1.3)) is Decision.CONTINUE
    assert Arbiter().decide(PARENT, failed_trial(1)) is Decision.CONTINUE


def test_estimates_are_compared_with_each_other_not_with_what_is_true() -> None:
    parent, child = ok_trial(0, 1.5), ok_trial(1, 1.6)
    assert parent.fitness is not None and parent.fitness.estimated
    assert Arbiter().decide(parent, child) is Decision.ACCEPT
    assert Arbiter().decide(parent, ok_trial(1, 1.51)) is Decision.CONTINUE


def test_as_fast_with_fewer_resources_is_accepted_but_no_gain() -> None:
    arbiter = Arbiter()
    assert arbiter.decide(measured(0, 1.5, 1.45, 1.55, spill_bytes=64), measured(1, 1.5, 1.4, 1.6)) is Decision.ACCEPT
    assert arbiter.idle == 1
    assert arbiter.decide(PARENT, measured(1, 1.5, 1.4, 1.6, occupancy=0.9)) is Decision.CONTINUE
    assert arbiter.decide(measured(0, 1.5, 1.45, 1.55, spill_bytes=64), measured(1, 1.3, 1.2, 1.4)) is Decision.FINISH


def test_the_path_ends_where_nothing_is_gained_any_more() -> None:
    arbiter = Arbiter()
    decisions = [arbiter.decide(PARENT, failed_trial(i)) for i in range(1, PATIENCE + 1)]
    assert decisions == [Decision.CONTINUE] * (PATIENCE - 1) + [Decision.FINISH]


def test_the_path_ends_after_its_rounds_whatever_is_gained() -> None:
    arbiter = Arbiter()
    path = [measured(i, 1.5 * 1.2**i, 1.49 * 1.2**i, 1.51 * 1.2**i) for i in range(ROUNDS + 1)]
    decisions = [arbiter.decide(a, b) for a, b in itertools.pairwise(path)]
    assert decisions == [Decision.ACCEPT] * (ROUNDS - 1) + [Decision.FINISH]


def test_the_path_ends_where_the_device_can_do_no_more() -> None:
    assert Arbiter().decide(PARENT, measured(1, 3.0, 2.9, 3.1, share=CEILING)) is Decision.FINISH
    assert Arbiter().decide(PARENT, measured(1, 1.5, 1.4, 1.6, share=CEILING)) is Decision.CONTINUE
