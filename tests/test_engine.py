"""evo.search.engine."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.instant import SEED_SOURCE, InstantEvaluator, score
from evo.core.records import Bar, Candidate, Evaluation, StopReason, Trial, Verdict
from evo.search.budget import gpu_seconds
from evo.search.engine import Engine, stored_screen
from evo.search.strategies import STRATEGIES
from evo.search.termination import attained, came_to_end
from tests.engine_support import ALL_OPERATORS, MeasuringEvaluator, SlowEvaluator, create, facts, resume, search

RULES = [name for name, strategy in STRATEGIES.items() if not strategy.asks]  # those that need no model


@dataclasses.dataclass
class Watch:
    """An Observer that remembers."""

    trials: list[Trial] = dataclasses.field(default_factory=list)
    replayed: int = 0

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        self.trials.append(trial)
        self.replayed += replayed


@pytest.mark.parametrize("strategy", RULES)
def test_a_run_spends_its_budget_and_improves(tmp_path: Path, strategy: str) -> None:
    with create(tmp_path, strategy=strategy, budget=60, seed=1) as store:
        outcome = search(store)
        assert (outcome.reason, outcome.spent) == ("budget spent", 60)
        trials = list(store.trials())
        assert [t.index for t in trials] == list(range(61))
        assert trials[0].proposal.candidate.source == SEED_SOURCE
        assert outcome.seed == trials[0]
        assert outcome.best is not None and outcome.best.fitness is not None
        assert outcome.best == store.best()
        assert outcome.best.fitness.speedup > 1.1
        assert len({t.proposal.candidate.id for t in trials}) == 61
        assert store.pending() == []


@pytest.mark.parametrize("strategy", RULES)
def test_same_seed_same_run(tmp_path: Path, strategy: str) -> None:
    for name in ("a", "b"):
        random.seed(name)  # the global generator is nobody's business
        with create(tmp_path / name, strategy=strategy, seed=5) as store:
            search(store)
    assert facts(tmp_path / "a") == facts(tmp_path / "b")
    with create(tmp_path / "c", strategy=strategy, seed=6) as store:
        search(store)
    assert facts(tmp_path / "c")["sources"] != facts(tmp_path / "a")["sources"]


@pytest.mark.parametrize("strategy", RULES)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path, strategy: str) -> None:
    with create(tmp_path / "whole", strategy=strategy) as store:
        search(store)
    watch = Watch()
    with create(tmp_path / "parts", strategy=strategy) as store:
        outcome = search(store, observers=[watch], stop=lambda: len(watch.trials) >= 17)
        assert (outcome.reason, outcome.spent) == ("interrupted", 16)
    again = Watch()
    with resume(tmp_path / "parts") as store:
        assert search(store, observers=[again]).reason == "budget spent"
    assert again.replayed == 17
    assert again.trials[:17] == watch.trials
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


def test_a_kernel_as_fast_as_attainable_ends_the_run(tmp_path: Path) -> None:
    class Limited(InstantEvaluator):
        """The seed takes 1.5 times the attainable time, and no kernel more than that much less."""

        def _with(self, evaluation: Evaluation) -> Evaluation:
            timings = tuple(
                dataclasses.replace(t, attainable_us=t.baseline_median_us / 1.5) for t in evaluation.timings
            )
            return dataclasses.replace(evaluation, timings=timings)

        def prepare(self) -> Evaluation:
            return self._with(super().prepare())

        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            return self._with(super().evaluate(candidate, seed=seed, known=known, bar=bar))

    with create(tmp_path / "on", stop_at_attainable=0.97) as store:
        outcome = search(store, Limited())
        assert outcome.reason is StopReason.ATTAINABLE and outcome.spent < 40
        assert outcome.best is not None
        shares = [timing.attained for timing in outcome.best.evaluation.timings]
        assert min(share for share in shares if share is not None) >= 0.97
        before = [t for t in store.trials() if t.index != outcome.best.index]
        assert not any(attained(trial, store.info.config) for trial in before)
        assert came_to_end(store)
        assert search(store, Limited()).spent == outcome.spent  # going on finds nothing to do
    with create(tmp_path / "off") as store:
        assert search(store, Limited()).reason is StopReason.BUDGET


def test_more_budget_goes_on_like_a_longer_run(tmp_path: Path) -> None:
    with create(tmp_path / "long", budget=50) as store:
        search(store)
    with create(tmp_path / "short", budget=20) as store:
        search(store)
        store.set_config(store.info.config.with_budget(50))
    with resume(tmp_path / "short") as store:
        search(store)
    assert facts(tmp_path / "short") == facts(tmp_path / "long")


def test_a_run_ends_when_its_gpu_seconds_are_spent(tmp_path: Path) -> None:
    with create(tmp_path, gpu_seconds=8.0, budget=1000) as store:
        outcome = search(store, MeasuringEvaluator())
        assert outcome.reason == "budget spent"
        spent = [gpu_seconds(trial.evaluation) for trial in store.trials() if trial.index]
    assert sum(spent) >= 8.0 > sum(spent[:-1])
    assert 5 <= len(spent) <= 16


@pytest.mark.parametrize("after", range(1, 8))
def test_gpu_seconds_end_a_resumed_run_at_the_same_place(tmp_path: Path, after: int) -> None:
    with create(tmp_path / "whole", gpu_seconds=5.0) as store:
        search(store, MeasuringEvaluator())
    watch = Watch()
    with create(tmp_path / "parts", gpu_seconds=5.0) as store:
        search(store, MeasuringEvaluator(), observers=[watch], stop=lambda: len(watch.trials) >= after)
    for _ in range(2):  # the second time there is nothing left to do
        with resume(tmp_path / "parts") as store:
            assert search(store, MeasuringEvaluator()).reason == "budget spent"
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


def test_several_workers_evaluate_at_once_and_each_proposal_once(tmp_path: Path) -> None:
    barrier, calls = threading.Barrier(3, timeout=30), itertools.count()

    class Together(SlowEvaluator):
        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            if next(calls) < 3:
                barrier.wait()  # passes only if three evaluations are under way
            return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    evaluator = Together()
    with create(tmp_path, workers=3, budget=40) as store:
        assert search(store, evaluator).spent == 40
        assert sorted(t.index for t in store.trials()) == list(range(41))
    assert len(evaluator.evaluated) == len(set(evaluator.evaluated)) == 40


def test_one_worker_knows_all_results_before_it_asks(tmp_path: Path) -> None:
    with create(tmp_path, workers=1) as store:
        search(store)
        for trial in store.trials():
            assert all(parent < trial.index for parent in trial.proposal.parents)
        proposed = [at for (at,) in store._db.execute("SELECT at FROM proposals ORDER BY trial")]
        finished = [at for (at,) in store._db.execute("SELECT at FROM evaluations ORDER BY finished")]
    assert all(done <= asked for done, asked in zip(finished, proposed[1:], strict=False))


def test_models_may_be_asked_while_the_budget_has_room(tmp_path: Path) -> None:
    found: list[bool] = []

    class Asking(InstantEvaluator):
        def evaluate(self, candidate: Candidate, **more: Any) -> Evaluation:
            found.append(engine.asks)
            return super().evaluate(candidate, **more)

    evaluator = Asking()
    with create(tmp_path, budget=3) as store:
        operators = {name: ALL_OPERATORS[name] for name in store.info.config.operators}
        engine = Engine(store, InstantEvaluator().prepare(), SEED_SOURCE, evaluator, score, operators)
        engine.run()
    assert found == [True, True, False]  # the last candidate leaves no room for another


class Exhausting(InstantEvaluator):
    """Nothing but the seed is right."""

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        if candidate.source == SEED_SOURCE:
            return super().evaluate(candidate, seed=seed, known=known, bar=bar)
        return Evaluation(candidate.id, Verdict.WRONG, "verify", message="wrong")


def test_an_exhausted_space_ends_the_run(tmp_path: Path) -> None:
    """`nudge` reaches 18 sources from the seed."""
    with create(tmp_path, operators=("nudge",), budget=500, workers=2) as store:
        outcome = search(store, Exhausting())
        assert outcome.reason == "search space exhausted"
        assert 10 < outcome.spent <= 18
        assert outcome.best == outcome.seed
        assert store.events()[-1][:2] == ("ended", "search space exhausted")


def test_a_failing_evaluator_is_asked_twice(tmp_path: Path) -> None:
    class Failing(SlowEvaluator):
        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            evaluation = super().evaluate(candidate, seed=seed, known=known, bar=bar)
            tries = self.evaluated.count(candidate.id)
            if len(self.evaluated) <= 3 or tries == 2:
                return Evaluation(candidate.id, Verdict.INFRASTRUCTURE, "record", message="no space")
            return evaluation

    evaluator = Failing()
    with create(tmp_path, budget=4) as store:
        search(store, evaluator)
        counts = [evaluator.evaluated.count(t.proposal.candidate.id) for t in store.trials()]
        assert counts == [0, 2, 2, 1, 1]
        assert store.verdicts()["infrastructure"] == 2


def test_a_bug_in_the_evaluator_is_not_a_verdict(tmp_path: Path) -> None:
    class Broken(InstantEvaluator):
        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            if candidate.source != SEED_SOURCE:
                raise ZeroDivisionError("bug")
            return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    with create(tmp_path) as store:
        with pytest.raises(ZeroDivisionError):
            search(store, Broken())
        assert len(store.pending()) == 1


def test_estimates_are_paid_for_once(tmp_path: Path) -> None:
    evaluator = SlowEvaluator()
    with create(tmp_path) as store:
        screen = stored_screen(store, evaluator.screen)
        sources = ["GENES=(1, 2, 3)\n", "GENES=(4, 5, 6)\n", "GENES=(1, 2, 3)\n"]
        first = screen(sources)
        assert len(evaluator.screened) == 2
        assert first[0] == first[2] != first[1]
    with resume(tmp_path) as store:
        assert stored_screen(store, evaluator.screen)(sources) == first
        assert len(evaluator.screened) == 2
        assert stored_screen(store, lambda new: [None for _ in new])(["y = 1\n", sources[0]]) == [None, first[0]]


def test_duplicates_point_to_a_known_candidate_and_cost_budget(tmp_path: Path) -> None:
    with create(tmp_path, budget=400) as store:
        assert search(store).spent == 400
        trials = list(store.trials())
    duplicates = [t for t in trials if t.evaluation.verdict is Verdict.DUPLICATE]
    ok = {t.proposal.candidate.id for t in trials if t.evaluation.verdict is Verdict.OK}
    assert duplicates, "the evaluator made none, so nothing was tested"
    assert all(t.evaluation.duplicate_of in ok for t in duplicates)


def test_a_serial_run_drops_duplicates_before_they_cost_budget(tmp_path: Path) -> None:
    def duplicates(name: str, **changes: Any) -> int:
        with create(tmp_path / name, budget=300, **changes) as store:
            search(store)
            return sum(t.evaluation.verdict is Verdict.DUPLICATE for t in store.trials())

    assert duplicates("all") > 1
    assert duplicates("serial", redrafts=8) == 0
    assert duplicates("several", redrafts=8, workers=2) > 1  # found by workers, so that none waits for another's


def test_dropped_duplicates_are_dropped_again_on_resume(tmp_path: Path) -> None:
    with create(tmp_path / "whole", budget=40, redrafts=8) as store:
        search(store)
    with create(tmp_path / "parts", budget=15, redrafts=8) as store:
        search(store)
        store.set_config(store.info.config.with_budget(40))
    with resume(tmp_path / "parts") as store:
        search(store)
    whole, parts = facts(tmp_path / "whole"), facts(tmp_path / "parts")
    assert parts["proposals"] == whole["proposals"]


def test_stopping_does_not_wait_for_screenings(tmp_path: Path) -> None:
    """A question that is being answered is dropped, and asked again on resume."""
    stop = threading.Event()

    class Stopping(SlowEvaluator):
        def screen(self, sources: Sequence[str]) -> list[float | None]:
            if len(self.screened) == 5:
                stop.set()
            return super().screen(sources)

    evaluator = Stopping()
    with create(tmp_path / "parts", operators=("screening",)) as store:
        assert search(store, evaluator, stop=stop.is_set).reason == "interrupted"
        assert len(evaluator.screened) == 6
    with resume(tmp_path / "parts") as store:
        search(store)
    with create(tmp_path / "whole", operators=("screening",)) as store:
        search(store)
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


def test_screenings_of_one_question_run_at_once(tmp_path: Path) -> None:
    barrier, calls = threading.Barrier(3, timeout=30), itertools.count()

    class Together(SlowEvaluator):
        def screen(self, sources: Sequence[str]) -> list[float | None]:
            if next(calls) < 3:
                barrier.wait()  # passes only if three screenings are under way
            return super().screen(sources)

    with create(tmp_path, operators=("screening",), workers=3, budget=3) as store:
        assert search(store, Together()).spent == 3
