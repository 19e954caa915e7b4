"""Progressive evaluation: who ends at a first look, and that nothing counts which was not evaluated all the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.instant import SEED_SOURCE, InstantEvaluator
from analysis.suite import RIGHT
from evo.campaign.shared import SharedEvaluator
from evo.core.records import (
    Bar,
    Candidate,
    Certificate,
    Evaluation,
    Proposal,
    Timing,
    Trial,
    Verdict,
    evaluation_from_json,
    evaluation_to_json,
)
from evo.core.rewards import Judged
from evo.result import Result
from evo.search.archive import Archive
from evo.search.assemble import certified
from evo.search.listener import Listener
from evo.search.replay import Redoing
from evo.search.strategies import PARENTS, STRATEGIES, Evolve, HillClimb
from evo.storage.queries import RunReader
from fitness.cpu_backend import CpuEvaluator
from fitness.evaluator import Look
from fitness.frontend.stages import Stop
from tests.bench_on_cpu import CpuBench, at, doubling
from tests.engine_support import ALL_OPERATORS, SlowEvaluator, create, facts, ok_trial, resume, search
from tests.test_engine import Watch
from tests.test_strategies import told

OUT_OF_REACH = Bar(1e9)


def timing(ratio: float, high: float | None = None, case: str = "square", estimated: bool = False) -> Timing:
    high = ratio if high is None else high
    return Timing(case, (1.0,), (ratio,), ratio, (ratio, high), estimated)


def slow(candidate: str = "c", ratio: float = 0.5) -> Evaluation:
    return Evaluation(candidate, Verdict.SLOW, "look", "slow", look=(timing(ratio),))


# --- the bar ---------------------------------------------------------------------------------------------------------


def test_a_bar_is_above_a_candidate_that_can_reach_it_nowhere() -> None:
    bar = Bar(2.0, {"a": 3.0, "b": 1.5})
    assert bar.is_above([timing(1.0, case="a"), timing(1.0, case="b")])
    assert not bar.is_above([timing(1.0, case="a"), timing(1.5, case="b")]), "as fast as a parent in one case"
    assert not bar.is_above([timing(2.9, case="a"), timing(1.4, case="b")]), "as fast as a parent over all"
    assert not Bar(2.0).is_above([timing(1.9, high=2.1)]), "a measured one may reach the end of its interval"
    assert Bar(2.0).is_above([timing(1.9, high=2.1, estimated=True)]), "of estimates the search compares the ratio"


def test_the_bar_of_an_island_is_set_by_its_best_candidates() -> None:
    speedups = [{"a": float(i), "b": 8.0 - i} for i in range(1, 7)]
    trials = [ok_trial(i, max(each.values()), per_case=each, island=1) for i, each in enumerate(speedups, 1)]
    strategy = told(Evolve, trials[: PARENTS - 1], islands=3)
    assert strategy.bar(1) is None, "too few to say who would be a parent"
    strategy = told(Evolve, trials, islands=3)
    assert strategy.bar(0) is None or strategy.bar(0) == strategy.bar(1)
    assert strategy.bar(1) == Bar(4.0 + 1.0, {"a": 3.0, "b": 4.0})


def test_the_bar_of_a_path_is_its_best_and_other_strategies_take_any_parent() -> None:
    assert told(HillClimb, [ok_trial(0), ok_trial(1, 3.0), ok_trial(2, 2.0)]).bar(0) == Bar(3.0)
    others = set(STRATEGIES.values()) - {Evolve, HillClimb}
    assert all(told(kind, [ok_trial(i) for i in range(9)]).bar(0) is None for kind in others)


# --- what a first look ends says so, and counts for nothing ----------------------------------------------------------


def test_an_evaluation_says_how_far_it_was_taken() -> None:
    assert not slow().whole and slow().fitness is None and slow().speedup is None
    looked = slow(ratio=0.5).looked
    assert looked is not None and looked.speedup == 0.5
    assert evaluation_from_json(evaluation_to_json(slow())) == slow()
    assert ok_trial(1).evaluation.whole and ok_trial(1).evaluation.looked is None


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": Verdict.SLOW, "stage": "look"},
        {"verdict": Verdict.SLOW, "stage": "time", "look": (timing(1.0),)},
        {"verdict": Verdict.WRONG, "stage": "verify", "look": (timing(1.0),)},
        {"verdict": Verdict.SLOW, "stage": "look", "look": (timing(1.0),), "timings": (timing(1.0),)},
    ],
)
def test_times_of_a_first_look_are_no_times(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"first look|only OK"):
        Evaluation("c", message="m", **fields)


def test_what_was_not_taken_all_the_way_is_no_parent_no_best_and_no_success() -> None:
    made = Proposal(1, Candidate("x = 1\n"), "params")
    trial = Trial(made, slow(made.candidate.id, 99.0))
    archive = Archive()
    assert archive.add(trial) is None and archive.best is None and archive.elites() == []
    assert Verdict.SLOW not in RIGHT
    assert not Judged(Verdict.SLOW, "look").correct
    assert set(Judged(Verdict.SLOW, "look", 99.0).rewards.values()) == {0.0}
    with pytest.raises(ValueError, match="fitness exists for OK only"):
        replace(trial, fitness=trial.evaluation.looked)


class Certifying(InstantEvaluator):
    """Notes what it certifies, and refuses all but the seed."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def certify(self, source: str, *, seed: int) -> Certificate:
        self.asked.append(Candidate(source).id)
        return Certificate(Candidate(source).id, Verdict.WRONG, "refused")


@pytest.mark.parametrize("strategy", ["evolve", "hillclimb"])
def test_a_search_goes_on_from_whole_candidates_alone(tmp_path: Path, strategy: str) -> None:
    with create(tmp_path, strategy=strategy, progressive=True, budget=80, islands=1) as store:
        outcome = search(store)
        trials = {t.index: t for t in store.trials()}
        ended = {index for index, t in trials.items() if not t.evaluation.whole}
        assert len(ended) >= 5
        for index in ended:
            bar = trials[index].proposal.bar
            assert bar is not None and bar.is_above(trials[index].evaluation.look)
        for trial in trials.values():
            assert not ended & set(trial.proposal.parents)
            if trial.fitness is not None and trial.index and trial.proposal.bar is not None:
                assert not trial.proposal.bar.is_above(trial.evaluation.timings)
        ranked = [t.index for t in store.ranked()]
        assert ranked and not ended & set(ranked)
        best = max((t for t in trials.values() if t.fitness), key=lambda t: (t.fitness.speedup, -t.index))  # type: ignore[union-attr]
        assert outcome.best is not None and outcome.best.index == best.index
        # The look is of the same model here: a full evaluation of what it ended would have found no new best.
        assert best.fitness is not None
        assert all(trials[i].evaluation.looked.speedup <= best.fitness.speedup for i in ended)  # type: ignore[union-attr]
        certifier = Certifying()
        certified(store, trials[0], certifier, "", Listener())
        assert not {trials[i].proposal.candidate.id for i in ended} & set(certifier.asked)
        assert store.verdicts()["slow"] == len(ended)
    assert Result(tmp_path).best is not None and Result(tmp_path).best.trial == best.index  # type: ignore[union-attr]


def test_without_the_setting_all_are_evaluated_all_the_way(tmp_path: Path) -> None:
    with create(tmp_path, budget=60) as store:
        search(store)
        assert "slow" not in store.verdicts() and all(t.proposal.bar is None for t in store.trials())


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [3, 25, 41])
def test_a_resumed_run_makes_the_same_decisions(tmp_path: Path, after: int) -> None:
    with create(tmp_path / "whole", progressive=True, budget=60) as store:
        search(store)
    watch = Watch()
    with create(tmp_path / "parts", progressive=True, budget=60) as store:
        search(store, observers=[watch], stop=lambda: len(watch.trials) >= after)
    with resume(tmp_path / "parts") as store:
        search(store)
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


def test_a_replay_finds_the_bars_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evo.core.versions.own_versions", lambda: {"evo": "1"})
    with create(tmp_path, progressive=True, budget=60) as store:
        search(store)
    with RunReader(tmp_path) as run:
        decisions = list(Redoing(run, ALL_OPERATORS, {}, lambda **_: None).decisions())  # type: ignore[arg-type]
    assert [d.difference() for d in decisions if not d.same] == []
    assert sum(d.stored["bar"] is not None for d in decisions) > 10


def test_what_is_pending_keeps_its_bar(tmp_path: Path) -> None:
    class Interrupted(SlowEvaluator):
        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            if bar is not None:
                raise KeyboardInterrupt
            return super().evaluate(candidate, seed=seed, known=known)

    with create(tmp_path, progressive=True, budget=60) as store:
        with pytest.raises(KeyboardInterrupt):
            search(store, Interrupted())
        (pending,) = store.pending()
        assert pending.bar is not None
    with resume(tmp_path) as store:
        search(store)
        trial = store.trial(pending.index)
    assert isinstance(trial, Trial) and trial.proposal == pending


def test_runs_of_schema_2_have_no_bars(tmp_path: Path) -> None:
    with create(tmp_path, budget=5) as store:
        search(store)
        before = list(store.trials())
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        db.execute("ALTER TABLE proposals DROP COLUMN bar")
        for trial, text in db.execute("SELECT trial, evaluation FROM evaluations").fetchall():
            raw = json.loads(text)
            del raw["look"]
            db.execute("UPDATE evaluations SET evaluation = ? WHERE trial = ?", (json.dumps(raw), trial))
        db.execute("PRAGMA user_version = 2")
        db.commit()
    with RunReader(tmp_path) as run:
        assert list(run.trials()) == before
        assert run.pending() == []


def test_runs_of_a_campaign_that_share_results_find_what_each_finds_alone(tmp_path: Path) -> None:
    found = {}
    for name, bars in {"full first": (None, OUT_OF_REACH), "look first": (OUT_OF_REACH, None)}.items():
        folder = tmp_path / name
        folder.mkdir()
        with closing(SharedEvaluator(InstantEvaluator(), folder, "task")) as shared:
            for bar in bars:
                found[name, bar is None] = shared.evaluate(Candidate(SEED_SOURCE), seed=0, known={}, bar=bar)
    for full, verdict in ((True, Verdict.OK), (False, Verdict.SLOW)):
        assert found["full first", full] == found["look first", full]
        assert found["full first", full].verdict is verdict


# --- evaluators ------------------------------------------------------------------------------------------------------


def test_without_a_gpu_a_first_look_is_an_estimate_of_the_tune_cases(evaluators: Any) -> None:
    evaluator: CpuEvaluator = evaluators("softmax")
    source = Candidate(evaluator.task.needed_seed + "\nNEW = 1\n")
    ended = evaluator.evaluate(source, seed=1, known={}, bar=OUT_OF_REACH)
    assert ended.verdict is Verdict.SLOW and "below the 1000000000.00x" in ended.message
    assert "verify" not in ended.seconds and ended.plan_hash
    assert {t.case for t in ended.look} == {c.name for c in evaluator.task.cases if c.role == "tune"}
    whole = evaluator.evaluate(source, seed=1, known={}, bar=Bar(0.5))
    assert whole == replace(evaluator.evaluate(source, seed=1, known={}), seconds=whole.seconds)
    assert whole.verdict is Verdict.OK and whole.timings == ended.look


def test_who_passes_a_first_look_is_checked_as_ever(evaluators: Any) -> None:
    evaluator: CpuEvaluator = evaluators("softmax")
    wrong = Path("tests/hacks/skip_last_row.py").read_text(encoding="utf-8")
    found = evaluator.evaluate(Candidate(wrong), seed=1, known={}, bar=Bar(1e-9))
    alone = evaluator.evaluate(Candidate(wrong), seed=1, known={})
    assert (found.verdict, found.stage, found.message) == (alone.verdict, alone.stage, alone.message)
    assert found.verdict is Verdict.WRONG


def test_a_first_look_of_the_bench_verifies_and_times_the_tune_cases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0))
    report = bench.bench.look(doubling(80.0), "1")  # type: ignore[arg-type]
    assert [t.case for t in report.timings] == ["one"]
    (found,) = report.timings
    assert found.ratio == pytest.approx(0.5) and found.ci95[0] < 0.5 < found.ci95[1] < 0.52
    assert Bar(0.6).is_above(report.timings) and not Bar(0.5).is_above(report.timings)

    def half_done(x: int, y: int, n: int) -> float:
        at(y, n)[: n // 2] = 2 * at(x, n)[: n // 2]
        return 10.0

    with pytest.raises(Stop, match="one") as stop:
        bench.bench.look(half_done, "1")  # type: ignore[arg-type]
    assert stop.value.verdict is Verdict.WRONG
    assert bench.evaluate(doubling(20.0)).timings[0].ratio == pytest.approx(2.0), "the look left all as it was"


def test_looks_are_sent_to_workers() -> None:
    from fitness.cluster.pool import Backends

    asked: list[Any] = []

    class Pool:
        def call(self, method: str, *arguments: Any) -> Look:
            asked.append((method, *arguments[1:]))
            return Look(())

    backends: Any = Backends(type("Workers", (), {"pool": Pool()})(), "time", None)  # type: ignore[arg-type]
    backends._task = "task"
    assert backends.look("source", "compiled", "key") == Look(())
    assert asked == [("look", "source", "compiled", "key")]
