"""Profiles of a run: made of what is worth it, stored before it is known, read beside the parent's; credit of hints."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from analysis.benchmarks.instant import InstantEvaluator, score
from evo.cli.show_text import show_run, show_trial
from evo.core.errors import EvoError
from evo.core.models import Model
from evo.core.records import Candidate, Evaluation, Hint, Profile, Trial, Verdict, profile_to_json
from evo.llm.prompt_scheduler import PromptScheduler
from evo.search.profiling import ProfilingEvaluator
from evo.storage.queries import HintCredit, RunReader
from evo.storage.schema import connect_to_write
from evo.storage.store import Store
from operators.registry import LLM_OPERATORS
from tests.engine_support import create, failed_trial, ok_trial, resume, search
from tests.llm_support import context as context_of


class Profiling(InstantEvaluator):
    """Profiles at once, or raises."""

    def __init__(self, measured: bool = False, broken: bool = False) -> None:
        self.measured, self.broken = measured, broken
        self.profiled: list[str] = []
        self.counted: list[str] = []

    def evaluate(self, candidate, *, seed, known, bar=None) -> Evaluation:
        evaluation = super().evaluate(candidate, seed=seed, known=known, bar=bar)
        timings = tuple(dataclasses.replace(t, estimated=not self.measured) for t in evaluation.timings)
        return dataclasses.replace(evaluation, timings=timings)

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        self.profiled.append(candidate.id)
        self.counted += [candidate.id] if counters else []
        if self.broken:
            raise EvoError("no profile today")
        us = evaluation.timings[0].samples_us[0]
        return Profile("estimate", "memory", "so", {"time, µs": us}, metrics={"time, µs": us}, case="square")


def run(store: Store, inner: Profiling, asks: Callable[[], bool] = lambda: True, **more) -> None:
    evaluator = ProfilingEvaluator(inner, score, store.folder, asks)
    search(store, evaluator, observers=[evaluator], **more)


def finished(folder: Path) -> list[Trial]:
    with RunReader(folder) as reader:
        return list(reader.trials())


def ok(trials: list[Trial]) -> list[Trial]:
    return [t for t in trials if t.evaluation.verdict is Verdict.OK]


def test_estimated_candidates_that_are_ok_are_all_profiled_once(tmp_path):
    inner = Profiling()
    with create(tmp_path) as store:
        run(store, inner)
        trials = list(store.trials())
        found = store.profiles([t.index for t in trials])
    assert set(found) == {t.index for t in ok(trials)}
    assert sorted(inner.profiled) == sorted({t.proposal.candidate.id for t in ok(trials)})
    for trial in ok(trials)[1:]:
        parent = next(t for t in trials if t.index == trial.proposal.parents[0])
        assert found[trial.index].before == {"time, µs": parent.evaluation.timings[0].samples_us[0]}
    assert found[0].before == {}


def test_measured_candidates_are_profiled_where_they_come_near_the_best(tmp_path):
    inner = Profiling(measured=True)
    with create(tmp_path) as store:
        run(store, inner)
    trials = ok(finished(tmp_path))
    best, near, bests = 0.0, [], []
    for trial in trials:
        assert trial.fitness is not None
        if trial.fitness.speedup >= 0.9 * best:
            near.append(trial.proposal.candidate.id)
        if trial.fitness.speedup > best:
            bests.append(trial.proposal.candidate.id)
        best = max(best, trial.fitness.speedup)
    assert (inner.profiled, inner.counted) == (near, bests)
    assert 1 < len(bests) < len(near) < len(trials)


def test_counters_are_read_while_another_prompt_may_follow(tmp_path):
    always, sometimes = Profiling(measured=True), Profiling(measured=True)
    for name, inner in (("always", always), ("sometimes", sometimes)):
        with create(tmp_path / name) as store:
            run(store, inner, lambda inner=inner: inner is always or len(inner.counted) < 3)
    assert always.profiled == sometimes.profiled
    assert len(always.counted) > 3 and sometimes.counted == always.counted[:3]


def test_what_cannot_be_profiled_is_said_and_the_run_goes_on(tmp_path):
    with create(tmp_path, budget=5) as store:
        run(store, Profiling(broken=True))
        kinds = [(kind, text) for kind, text, _ in store.events()]
        assert store.profiles([0]) == {}
    assert len(finished(tmp_path)) == 6
    texts = [text for kind, text in kinds if kind == "unprofiled"]
    assert texts and all("no profile today" in t for t in texts)


def test_a_resumed_run_has_the_profiles_of_one_that_was_not_stopped(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    with create(whole, budget=20) as store:
        run(store, Profiling())
    half = Profiling()
    with create(halves, budget=20) as store:
        run(store, half, stop=lambda: len(half.profiled) > 7)
    with resume(halves) as store:
        run(store, Profiling())
    with RunReader(whole) as one, RunReader(halves) as two:
        indices = [t.index for t in one.trials()]
        assert one.profiles(indices) == two.profiles(indices)


def test_the_best_tier_counts(tmp_path):
    with create(tmp_path) as store:
        trial = ok_trial(0)
        store.proposed(trial.proposal)
        for tier in ("estimate", "ncu", "counters-free"):
            with closing(connect_to_write(tmp_path)) as db:
                row = (trial.proposal.candidate.id, tier, profile_to_json(Profile(tier, "memory", "so", {})), 0.0)
                db.execute("INSERT INTO profiles VALUES (?, ?, ?, ?)", row)
        assert store.profiles([0])[0].tier == "ncu"
        assert store.profile("unknown") is None


def test_hints_get_the_credit_of_those_that_followed_them(tmp_path):
    trials = [
        ok_trial(0, 1.0),
        ok_trial(1, 2.0, parents=(0,), cost={"hint:spills": 1.0, "tokens": 5.0}),
        ok_trial(2, 1.0, parents=(1, 0), cost={"hint:spills": 1.0}),
        failed_trial(3, parents=(1,), cost={"hint:spills": 1.0}),
        failed_trial(4, parents=(1,), cost={"hint:wider-loads": 1.0}),
        ok_trial(5, 3.0, parents=(1,)),
    ]
    with create(tmp_path) as store:
        for trial in trials:
            store.proposed(trial.proposal)
            store.finished(trial)
        one, two = store.hints()
    assert one == HintCredit("spills", trials=3, ok=2, improved=1, gain=pytest.approx(1.0))
    assert two == HintCredit("wider-loads", trials=1, ok=0, improved=0, gain=None)


def test_prompts_are_told_what_limits_their_parents(tmp_path):
    model = Model("m", "http://localhost:1/v1")
    with create(tmp_path, budget=5) as store:
        run(store, Profiling())
        index = ok(list(store.trials()))[1].index
        for guidance, words in (("digest", "Limited by memory: so"), ("raw", "## Metrics"), ("none", "")):
            prompts = PromptScheduler(LLM_OPERATORS, (model,), guidance, store.trial, store.profiles, context_of)
            question = prompts.question("mutate@m", [index], random.Random(0), island=0, told=0, proposed=0)
            assert question is not None
            text = question.prompt.messages[1].text
            assert words in text
            assert ("time, µs" in text) == (guidance != "none")
            assert ("before the last change" in text) == (guidance == "digest")


def test_a_trial_is_shown_with_what_limits_it(tmp_path):
    hinted = ok_trial(1, 2.0, parents=(0,), cost={"hint:spills": 1.0})
    with create(tmp_path) as store:
        for trial in (ok_trial(0), hinted):
            store.proposed(trial.proposal)
            store.finished(trial)
        evaluator = ProfilingEvaluator(Hinting(), score, tmp_path, lambda: True)
        evaluator.absorbed(ok_trial(0), replayed=True)
        console = Console(record=True, width=200, file=io.StringIO())
        show_trial(store, 0, console)
        show_run(store, console)
    text = console.export_text()
    assert "limited by memory: so" in text and "as ncu is not installed" in text
    assert "share of the roofline reached, %" in text and "load wider" in text
    assert "hints followed" in text and "2.00x" in text


class Hinting(Profiling):
    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        hint = Hint("wider-loads", "load wider")
        return Profile("counters-free", "memory", "so", {"a": 1.0}, 0.5, hints=(hint,), fallback="ncu is not installed")
