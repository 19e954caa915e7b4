"""evo.search.replay: the decisions of runs of every kind, made again from their stores."""

from __future__ import annotations

import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, context, llm_of, search_with
from analysis.benchmarks.instant import OPERATORS, SEED_SOURCE, InstantEvaluator, score
from evo.core.models import Model
from evo.llm import queue as lane_module
from evo.search.engine import Engine
from evo.search.replay import DecisionReplay, Redoing, _beginning
from evo.storage.queries import RunReader
from evo.storage.store import Store
from tests.engine_support import ALL_OPERATORS, SlowEvaluator, create, resume, search
from tests.llm_endpoint import error

ASK = {o.name: o for o in (Ask(), Ask("mend", repairs=True), Ask("cross", 2))}
ARMS = ("change@m", "mend@m", "cross@m")
KINDS = (Reply(), Reply(), error(503, "busy"), Reply(text="no"), Reply(), Reply(text="GENES=(1, 2, 3)"), Reply())


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of these tests say no hash of the code that made them."""
    monkeypatch.setattr("evo.core.versions.own_versions", lambda: {"evo": "1"})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "BACKOFF_S", 0.01)


@pytest.fixture
def endpoint() -> Any:
    with Endpoint(lambda body, number: KINDS[number % len(KINDS)]) as made:
        yield made


def redone(folder: Path) -> list[DecisionReplay]:
    with RunReader(folder) as run:
        rules = {n: o for n, o in ALL_OPERATORS.items() if n in run.info.config.operators}
        return list(Redoing(run, rules, ASK, context).decisions())  # type: ignore[arg-type]


def check(folder: Path, questions: int, proposals: int) -> None:
    decisions = redone(folder)
    assert [d.difference() for d in decisions if not d.same] == []
    assert sum(d.name.startswith("call") for d in decisions) == questions
    assert sum(d.name.startswith("trial") for d in decisions) == proposals


@pytest.mark.parametrize("strategy", ["evolve", "random", "hillclimb"])
def test_a_run_without_models(tmp_path: Path, strategy: str) -> None:
    with create(tmp_path, strategy=strategy, budget=60) as store:
        search(store)
    check(tmp_path, 0, 60)


def test_a_run_that_drops_twins(tmp_path: Path) -> None:
    with create(tmp_path, redrafts=8, budget=300) as store:
        search(store)
        dropped = sum(t.proposal.cost.get("twins", 0) for t in store.trials())
    assert dropped
    check(tmp_path, 0, 300)


def test_several_workers(tmp_path: Path) -> None:
    with create(tmp_path, workers=3, budget=60) as store:
        search(store, SlowEvaluator(0.002))
    check(tmp_path, 0, 60)


@pytest.mark.parametrize(("workers", "slots", "redrafts"), [(1, 1, 0), (1, 1, 8), (1, 6, 8), (3, 8, 8)])
@pytest.mark.parametrize("operators", [ARMS, ("mutate", "mix", *ARMS)])
def test_a_run_with_a_model(
    tmp_path: Path, endpoint: Endpoint, operators: tuple[str, ...], workers: int, slots: int, redrafts: int
) -> None:
    more = {"operators": operators, "workers": workers, "llm_slots": slots, "redrafts": redrafts, "budget": 40}
    with create(tmp_path, models=(Model("m", endpoint.url),), **more) as store:
        search_with(store, llm_of(store))
        asked = sum(m.calls for m in store.models())
    check(tmp_path, asked, 40)


def test_halves_of_a_run_by_turns(tmp_path: Path, endpoint: Endpoint) -> None:
    def half(store: Store, *, propose: int | None) -> None:
        evaluator = None if propose else InstantEvaluator()
        llm = llm_of(store) if propose else None
        first = evaluator.prepare() if evaluator else None
        Engine(store, first, SEED_SOURCE, evaluator, score, OPERATORS, proposals=propose or 0, llm=llm).run()

    models = (Model("m", endpoint.url),)
    with create(tmp_path, models=models, operators=ARMS, llm_slots=4, budget=40, screen_budget=0) as store:
        half(store, propose=6)
    for _ in range(3):
        with resume(tmp_path) as store:
            half(store, propose=None)
        with resume(tmp_path) as store:
            half(store, propose=8)
    with RunReader(tmp_path) as run:
        asked = sum(m.calls for m in run.models())
        assert len(run.pending()) > 0
    check(tmp_path, asked, 30)


def test_prompts_of_another_version_of_the_code_are_not_compared(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path, models=(Model("m", endpoint.url),), operators=ARMS, budget=4) as store:
        search_with(store, llm_of(store))
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db, db:
        db.execute("UPDATE llm_calls SET prompt_hash = 'x', request = replace(request, 'luck', 'lack')")
    monkeypatch.setattr("evo.core.versions.own_versions", lambda: {"evo": "1", "code": "another"})
    decisions = redone(tmp_path)
    assert all(d.same for d in decisions)
    assert [set(d.stored) for d in decisions if d.name == "call 1"] == [{"operator", "parents", "island"}]


def test_prompts_of_a_run_with_several_versions_are_not_compared(tmp_path: Path, endpoint: Endpoint) -> None:
    with create(tmp_path, models=(Model("m", endpoint.url),), operators=ARMS, budget=4) as store:
        search_with(store, llm_of(store))
        for version in ("2", "1"):  # and back
            store.goes_on(store.info.config, {"evo": version})
    decisions = redone(tmp_path)
    assert all(d.same for d in decisions)
    assert [set(d.stored) for d in decisions if d.name == "call 1"] == [{"operator", "parents", "island"}]


@pytest.mark.parametrize("tuned", ["", "; parameters tuned"])
def test_notes_that_earlier_versions_cut_are_the_same(tuned: str) -> None:
    words = "load what is read once " * 12
    before = textwrap.shorten(words, 160, placeholder=" ...")
    assert before.endswith(" ...") and _beginning(before + tuned) == _beginning(words.strip() + tuned) == before + tuned
    assert _beginning("other " + words) != before and _beginning(before) != _beginning(before + "; parameters tuned")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "UPDATE llm_calls SET prompt_hash = 'x', request = replace(request, 'luck', 'lack') WHERE call = 4",
            "call 4: prompt",
        ),
        ("UPDATE llm_calls SET answer = 'GENES=(7, 7, 7)' WHERE call = 2", "trial 2: candidate: stored"),
        ("UPDATE proposals SET note = 'else' WHERE trial = 5", "trial 5: note: stored 'else', made again"),
    ],
)
def test_what_was_changed_is_told(tmp_path: Path, endpoint: Endpoint, change: str, words: str) -> None:
    with create(tmp_path, models=(Model("m", endpoint.url),), operators=ARMS, budget=8) as store:
        search_with(store, llm_of(store))
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db, db:
        db.execute(change)
    differences = [d.difference() for d in redone(tmp_path) if not d.same]
    assert differences and differences[0].startswith(words)
