"""evo.storage.store: what a store promises, whatever is in it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from analysis.export_rows import evaluations
from analysis.export_schema import EXPORT
from analysis.report import Bounds, write_report
from evo.cli.show_text import show_run, show_trial
from evo.core.errors import StoreError
from evo.core.records import Finding, Proposal, Trial, Verdict
from evo.storage.folders import FILE
from evo.storage.model_calls import stored_calls
from evo.storage.queries import RunReader
from evo.storage.schema import SCHEMA_VERSION
from evo.storage.store import Store, check_makeable
from tests.engine_support import config, create, failed_trial, ok_trial, proposal, resume

DOCS = Path(__file__).parent.parent / "docs" / "store.md"


def fill(store: Store, *trials: Trial) -> None:
    for trial in trials:
        store.proposed(trial.proposal)
    for trial in trials:
        store.finished(trial)


def test_trials_come_back_as_they_were_in_the_order_they_finished(tmp_path: Path) -> None:
    trials = [
        ok_trial(0, operator="seed", note="the seed", seed=5),
        ok_trial(
            1, 1.1 + 1e-16, parents=(0,), cost={"screened": 3, "share": 0.1}, island=2, terms={"z": 0.1, "a": 0.3}
        ),
        failed_trial(2, Verdict.REJECTED, "line 3: no", parents=(1, 0)),
    ]
    with create(tmp_path) as store:
        for trial in trials:
            store.proposed(trial.proposal)
        for trial in (trials[2], trials[0], trials[1]):
            store.finished(trial)
        assert list(store.trials()) == [trials[2], trials[0], trials[1]]
    with RunReader(tmp_path) as run:
        assert list(run.trials()) == [trials[2], trials[0], trials[1]]
        assert run.trial(1) == trials[1]
        assert run.info.config == config()
        assert run.info.environment == {"sandbox": {"seccomp": "active"}}


def test_proposals_without_evaluation_are_pending(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0))
        waiting = [proposal(1, parents=(0,)), proposal(2)]
        for made in waiting:
            store.proposed(made)
        assert store.pending() == waiting
        assert store.trial(1) == waiting[0]
    with resume(tmp_path) as store:
        assert store.pending() == waiting


def test_candidates_are_counted_without_the_seed_whether_it_is_evaluated_or_not(tmp_path: Path) -> None:
    first, done, waiting = ok_trial(0, operator="seed"), ok_trial(1, parents=(0,)), proposal(2, parents=(0,))
    with create(tmp_path) as store:
        for made in (first.proposal, done.proposal, waiting):
            store.proposed(made)
        assert (store.spent(), store.pending_count()) == (0, 2)
        store.finished(done)  # by the second worker, before the seed
        assert (store.spent(), store.pending_count()) == (1, 1)
        store.finished(first)
        assert (store.spent(), store.pending_count()) == (1, 1)


def test_a_source_is_proposed_once_and_evaluated_once(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0))
        with pytest.raises(sqlite3.IntegrityError):
            store.proposed(proposal(1, "x = 0\n"))
        with pytest.raises(sqlite3.IntegrityError):
            store.finished(ok_trial(0))
        with pytest.raises(sqlite3.IntegrityError):  # facts first: no evaluation without a proposal
            store.finished(ok_trial(7))
        assert len(list(store.trials())) == 1
        fill(store, ok_trial(1))  # a refused fact leaves no open transaction


def test_screens_are_kept(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        store.screens({"a": 1.5, "b": None})
        store.screens({"a": 1.5})
    with resume(tmp_path) as store:
        assert store.screened(["a", "b", "c"]) == {"a": 1.5, "b": None}
        assert store.screen_count() == 2


def test_summaries(tmp_path: Path) -> None:
    trials = [
        ok_trial(0, 1.0, operator="seed"),
        ok_trial(1, 2.0, operator="grow", parents=(0,)),
        failed_trial(2, operator="grow", parents=(1,)),
        ok_trial(3, 3.0, operator="mix", parents=(1, 0)),
        ok_trial(4, 1.5, operator="mix", parents=(1, 0)),
        ok_trial(5, 3.0, operator="grow", parents=(3,)),
    ]
    with create(tmp_path) as store:
        fill(store, *trials)
        assert store.best() == trials[3]
        assert store.verdicts() == {"ok": 5, "wrong": 1}
        credit = {o.name: (o.trials, o.ok, o.improved, o.best) for o in store.operators()}
        assert credit == {"grow": (3, 2, 1, 3.0), "mix": (2, 2, 1, 3.0), "seed": (1, 1, 0, 1.0)}
        assert {(o.tokens, o.usd) for o in store.operators()} == {(None, None)}
        assert [t.index for t in store.lineage(5)] == [5, 3, 1, 0]


def test_what_lies_within_the_intervals_is_no_improvement(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        for index, (operator, speedup, ci95) in enumerate(
            (("seed", 1.0, (1.0, 1.0)), ("wide", 1.02, (0.79, 1.30)), ("narrow", 1.02, (1.01, 1.03)))
        ):
            trial = ok_trial(index, speedup, operator=operator, parents=(0,) if index else ())
            assert trial.fitness is not None
            fill(store, dataclasses.replace(trial, fitness=dataclasses.replace(trial.fitness, ci95=ci95)))
        assert {o.name: o.improved for o in store.operators()} == {"seed": 0, "wide": 0, "narrow": 1}


def test_operators_are_credited_with_what_their_answers_cost(tmp_path: Path) -> None:
    priced, unpriced = {"tokens_in": 10, "tokens_out": 20, "usd": 0.5}, {"tokens_in": 1, "tokens_out": 2}
    with create(tmp_path) as store:
        fill(store, *(ok_trial(i, operator="mutate@a", cost=priced) for i in range(2)))
        fill(store, ok_trial(2, operator="mutate@b", cost=priced), ok_trial(3, operator="mutate@b", cost=unpriced))
        assert {o.name: (o.tokens, o.usd) for o in store.operators()} == {"mutate@a": (60, 1.0), "mutate@b": (33, None)}
        fill(store, ok_trial(4, operator="mutate@a", cost={"tuned": 1.0}))  # an answer whose tokens were not counted
        assert [(o.tokens, o.usd) for o in store.operators() if o.name == "mutate@a"] == [(None, None)]


def test_an_empty_run_has_no_best(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        assert store.best() is None
        assert (store.verdicts(), store.operators(), store.pending()) == ({}, [], [])


def test_messages_that_are_not_utf_8_can_be_stored(tmp_path: Path) -> None:
    bad = failed_trial(1, message="broken \ud800 text\0")
    with create(tmp_path) as store:
        fill(store, ok_trial(0), bad)
        made = Proposal(2, proposal(2).candidate, "mutate", note="note \udcff")
        store.proposed(made)
        found = store.trial(1)
        assert isinstance(found, Trial) and found.evaluation.message == "broken \ud800 text\0"
        assert store.pending()[0].note == "note \\udcff"


def test_findings_survive(tmp_path: Path) -> None:
    trial = failed_trial(1)
    evaluation = trial.evaluation.__class__(
        trial.proposal.candidate.id, Verdict.REJECTED, "gate", "no", findings=(Finding("imports", 3, "import os"),)
    )
    with create(tmp_path) as store:
        fill(store, Trial(trial.proposal, evaluation))
        assert next(store.trials()).evaluation == evaluation


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(StoreError, match="holds one; go on with it by `evo resume"):
        create(tmp_path)
    resume(tmp_path).close()  # the refusal gave the lock back


def test_a_half_written_run_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / (FILE + ".new")).write_bytes(b"left by a process that was killed")
    with pytest.raises(StoreError, match=r"found no run\.sqlite"):
        RunReader(tmp_path)
    create(tmp_path).close()
    assert not (tmp_path / (FILE + ".new")).exists()


def test_a_run_can_be_read_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that made it was killed before it wrote anything more."""

    def killed(folder: Path) -> sqlite3.Connection:
        raise SystemExit

    monkeypatch.setattr("evo.storage.store.connect_to_write", killed)
    with pytest.raises(SystemExit):
        create(tmp_path)
    with sqlite3.connect(f"file:{tmp_path / FILE}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with RunReader(tmp_path) as run:
        assert run.pending() == []


def test_one_writer_many_readers(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        with pytest.raises(StoreError, match=rf"process {os.getpid()} is running"):
            resume(tmp_path)
        fill(store, ok_trial(0))
        with RunReader(tmp_path) as first, RunReader(tmp_path) as second:
            fill(store, ok_trial(1))
            assert [len(list(run.trials())) for run in (first, second)] == [2, 2]
            assert first.trial(1) == second.trial(1)
    resume(tmp_path).close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    create(tmp_path).close()
    with RunReader(tmp_path) as run, pytest.raises(sqlite3.OperationalError):
        run._db.execute("DELETE FROM meta")


def test_a_changed_task_is_refused(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(StoreError, match=r"task instant has changed .*task\.py or kernel\.py differ"):
        Store.resume(tmp_path, task_hash="other", versions={"evo": "1"})


@pytest.mark.parametrize(
    ("versions", "words"),
    [({"evo": "2"}, "with evo 1, here is evo 2"), ({"evo": "1", "triton": "9"}, "with triton none, here is triton 9")],
)
def test_changed_versions_are_refused(tmp_path: Path, versions: dict[str, str], words: str) -> None:
    create(tmp_path).close()
    with pytest.raises(StoreError, match=words):
        Store.resume(tmp_path, task_hash="hash", versions=versions)


def test_changed_versions_are_accepted_where_asked_and_the_history_keeps_the_earlier_ones(tmp_path: Path) -> None:
    create(tmp_path).close()
    other = {"evo": "2", "triton": "9"}
    with Store.open(tmp_path, task_hash="hash", versions=other, new_versions=True) as store:
        assert store.info.versions == {"evo": "1"}  # nothing changes before it goes on
        store.goes_on(store.info.config, other)
    with Store.resume(tmp_path, task_hash="hash", versions=other) as store:
        assert store.info.versions == other
        assert [(kind, text) for kind, text, _ in store.events()] == [
            ("started", "evo 1"),
            ("versions", "before: evo 1"),
            ("resumed", "evo 2, triton 9"),
            ("resumed", "evo 2, triton 9"),
        ]
    with pytest.raises(StoreError, match="has changed"):
        Store.open(tmp_path, task_hash="other", versions=other, new_versions=True)


def test_the_budget_can_be_raised(tmp_path: Path) -> None:
    with create(tmp_path, budget=5) as store:
        store.set_config(store.info.config.with_budget(9))
        assert store.info.config.budget == 9
    with RunReader(tmp_path) as run:
        assert run.info.config == config(budget=9)


def test_events_tell_the_story(tmp_path: Path) -> None:
    create(tmp_path).close()
    with resume(tmp_path) as store:
        store.event("ended", "budget spent")
        assert [kind for kind, _, _ in store.events()] == ["started", "resumed", "ended"]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_unknown_trial_is_named(tmp_path: Path, index: int) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0), ok_trial(1), ok_trial(2))
        with pytest.raises(StoreError, match=f"expected a trial from 0 to 2 in .*, got {index}"):
            store.trial(index)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a run in"):
        RunReader(tmp_path / "nowhere")
    (tmp_path / FILE).write_bytes(b"not a database, but long enough to be looked at" * 40)
    with pytest.raises(StoreError, match="not a database"):
        RunReader(tmp_path)
    (tmp_path / FILE).unlink()
    sqlite3.connect(tmp_path / FILE).execute("CREATE TABLE meta (x)").connection.close()
    with pytest.raises(StoreError, match="another program's database"):
        RunReader(tmp_path)


def test_a_partly_damaged_run_is_refused_wherever_it_is_read(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, *(ok_trial(i, source=f"{i} {'x' * 3000}") for i in range(20)))
    data = bytearray((tmp_path / FILE).read_bytes())
    data[4096 * 3 :] = b"\xff" * (len(data) - 4096 * 3)  # what the first pages hold can still be read
    (tmp_path / FILE).write_bytes(data)
    with (
        pytest.raises(StoreError, match=r"run\.sqlite, got: .*malformed.*; restore it from a copy"),
        RunReader(tmp_path) as run,
    ):
        list(run.trials())
    with pytest.raises(StoreError, match=r"restore it from a copy"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE evaluations SET evaluation = '{}' WHERE trial = 2", "table evaluations, trial 2"),
        ("UPDATE evaluations SET evaluation = 'xx' WHERE trial = 2", "table evaluations, trial 2"),
        ("UPDATE evaluations SET evaluation = '[]' WHERE trial = 2", "table evaluations, trial 2"),
        ("UPDATE evaluations SET speedup = 'fast' WHERE trial = 2", "table evaluations, trial 2"),
        ("UPDATE evaluations SET per_case = '7' WHERE trial = 2", "table evaluations, trial 2"),
        ("UPDATE proposals SET parents = '\"a\"' WHERE trial = 2", "table proposals, trial 2"),
        ("UPDATE proposals SET parents = '[9]' WHERE trial = 2", "table proposals, trial 2"),
        ("UPDATE proposals SET cost = '[1]' WHERE trial = 2", "table proposals, trial 2"),
        ("DELETE FROM sources WHERE rowid = 3", "table proposals, trial 2"),
        ("DELETE FROM proposals WHERE trial = 2", "table evaluations, row 3"),
        ("UPDATE sources SET text = 'y = 7' WHERE rowid = 3", "table proposals, trial 2"),
        ("UPDATE meta SET value = '{' WHERE key = 'config'", "table meta"),
        ("UPDATE meta SET value = '[]' WHERE key = 'environment'", "table meta"),
        ("UPDATE meta SET value = '5' WHERE key = 'versions'", "table meta"),
        ("DELETE FROM meta WHERE key = 'task_hash'", "table meta"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, statement: str, where: str) -> None:
    with create(tmp_path) as store:
        fill(store, *(ok_trial(i, 1.0 + i) for i in range(4)))
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute(statement)
    words = rf"{re.escape(str(tmp_path / FILE))}, got in {where}: .*; restore it from a copy"
    with pytest.raises(StoreError, match=words), RunReader(tmp_path) as run:
        list(run.trials())
    with pytest.raises(StoreError, match=words), resume(tmp_path) as store:
        list(store.trials())


def test_damage_that_a_query_of_ones_own_meets_is_named(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0))
        with pytest.raises(ValueError, match="a mistake"), RunReader(tmp_path):
            raise ValueError("a mistake of the program, as the rows are whole")
        store._db.execute("UPDATE evaluations SET evaluation = '{}'")
    query = "SELECT evaluation FROM evaluations"
    with pytest.raises(StoreError, match="table evaluations, trial 0"), RunReader(tmp_path) as run:
        [json.loads(text)["verdict"] for (text,) in run.rows(query)]


def test_a_damaged_call_is_named(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        row = (1, "hash", "m", "mutate@m", "[0]", 0, 1, '{"messages": []}', 0.0)
        store._db.execute(
            "INSERT INTO llm_calls (call, prompt_hash, model, operator, parents, island, told, request, asked_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    with RunReader(tmp_path) as run:
        assert len(list(stored_calls(run))) == 1
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE llm_calls SET request = '{}' WHERE call = 1")
    with pytest.raises(StoreError, match="table llm_calls, call 1"), RunReader(tmp_path) as run:
        list(stored_calls(run))
    with pytest.raises(StoreError, match="table llm_calls, call 1"), RunReader(tmp_path) as run:
        [json.loads(text)["messages"] for (text,) in run.rows("SELECT request FROM llm_calls")]


def test_a_damaged_profile_is_named(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, trial := ok_trial(0))
        store._db.execute("INSERT INTO profiles VALUES (?, 'estimate', '[]', 0)", (trial.evaluation.candidate,))
    with pytest.raises(StoreError, match=r"table profiles, candidate .*; restore it"), RunReader(tmp_path) as run:
        run.profiles([0])


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(StoreError, match=r"run\.sqlite, got an empty file; restore it from a copy"):
        RunReader(tmp_path)


def test_a_run_that_another_program_locks_is_not_called_damaged(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0, operator="seed"))
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        run = RunReader(tmp_path)
        run._db.execute("PRAGMA busy_timeout = 10")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"locked; wait for who writes to it"), run:
            list(run.trials())


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        settings = json.loads(store.info.config.to_json()) | {"annealing": 3}
        store._db.execute("UPDATE meta SET value = ? WHERE key = 'config'", (json.dumps(settings),))
    with pytest.raises(StoreError, match=r"'annealing'.*read it with the version that wrote it"):
        RunReader(tmp_path)


def test_a_run_of_the_schema_before_is_read_and_goes_on(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0, operator="seed"))
        (text,) = store._db.execute("SELECT evaluation FROM evaluations").fetchone()
        earlier = json.loads(text)
        for timing in earlier["timings"]:
            del timing["attainable_us"]
        store._db.execute("UPDATE evaluations SET evaluation = ?", (json.dumps(earlier),))
        store._db.execute("ALTER TABLE proposals DROP COLUMN bar")
        store._db.execute("PRAGMA user_version = 2")
    with RunReader(tmp_path) as run:
        (trial,) = run.trials()
        assert trial.evaluation.timings[0].attained is None and trial.evaluation.attained is None
        assert run._db.execute("PRAGMA user_version").fetchone() == (2,)
    with resume(tmp_path) as store:
        fill(store, ok_trial(1, 2.0, attainable_us=0.25))
    with RunReader(tmp_path) as run:
        assert [t.evaluation.attained for t in run.trials()] == [None, 0.5]
        assert run._db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    create(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="got schema 99; read it with the version that wrote it"):
        resume(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another --run-dir"):
        create(tmp_path / "file" / "run")


def test_whether_a_folder_can_be_made_is_known_without_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    for good in (Path("new"), Path("new/deep"), tmp_path, tmp_path / "new"):
        check_makeable(good)
    for bad in ("file", "file/run"):
        with pytest.raises(StoreError, match="file is a file; choose another --run-dir"):
            check_makeable(Path(bad))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so chmod would not do
    with pytest.raises(StoreError, match="cannot be written; choose another --run-dir"):
        check_makeable(Path("new/deep"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_finished_run_can_be_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path) as store:
        fill(store, ok_trial(0))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so chmod would not do
    before = sorted(tmp_path.iterdir())
    with RunReader(tmp_path) as run:
        assert len(list(run.trials())) == 1
        assert sorted(tmp_path.iterdir()) == before, "reading made files"


def test_the_disk_running_full_is_a_store_error(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full; free disk space"):
            fill(store, ok_trial(0, source=f"x = {'1' * 100_000}\n"))
        store._db.execute("PRAGMA max_page_count = 1000000")
        fill(store, ok_trial(0))


def test_the_schema_is_documented(tmp_path: Path) -> None:
    create(tmp_path).close()
    text = DOCS.read_text(encoding="utf-8")
    with RunReader(tmp_path) as run:
        tables = [row[0] for row in run._db.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]
        for table in tables:
            section = re.search(rf"^## {table}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
            assert section, f"docs/store.md has no section on {table}"
            columns = [row[1] for row in run._db.execute(f"PRAGMA table_info({table})")]
            missing = [c for c in columns if f"`{c}`" not in section.group(1)]
            assert not missing, f"docs/store.md says nothing on {table}: {missing}"


def test_what_an_earlier_version_evaluated_without_a_plan_is_never_shown_as_measured(tmp_path: Path) -> None:
    """A store of a task with `eager = True`: the evaluations that were ok say so."""
    with create(tmp_path / "run") as store:
        fill(store, ok_trial(0, operator="seed"), ok_trial(1, 2.0, parents=(0,)), failed_trial(2, parents=(0,)))
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("""UPDATE evaluations SET estimated = iif(verdict = 'ok', 0, NULL),
                      evaluation = substr(evaluation, 1, length(evaluation) - 1)
                      || iif(verdict = 'ok', ', "eager": true}', ', "eager": false}')""")
    with RunReader(tmp_path / "run") as run:
        found = list(run.trials())
        assert [t.evaluation.verdict for t in found] == [Verdict.UNSUPPORTED, Verdict.UNSUPPORTED, Verdict.WRONG]
        assert run.best() is None and run.verdicts() == {"unsupported": 2, "wrong": 1}
        assert [t.fitness for t in found] == [None] * 3 and not any(t.evaluation.timings for t in found)
        for table in ("trials", "evaluations"):
            assert list(run.rows(f"SELECT COUNT(speedup), COUNT(estimated) FROM {table}")) == [(0, 0)]
        console = Console(file=io.StringIO(), width=200)
        show_run(run, console)
        show_trial(run, 1, console)
    shown = console.file.getvalue()
    assert "verdict: unsupported at stage record" in shown and "verified no recorded plan" in shown
    assert "2.00x" not in shown and "measured" not in shown
    write_report([tmp_path / "run"], tmp_path / "report.html", [Bounds()])
    page = (tmp_path / "report.html").read_text()
    assert "no speedups yet" in page and "2.00×" not in page and ">measured<" not in page
    with RunReader(tmp_path / "run") as run:
        names = [column.name for column in EXPORT["evaluations"].columns][1:]
        rows = [dict(zip(names, row, strict=True)) for row in evaluations(run)]
    assert [row["verdict"] for row in rows] == ["unsupported", "unsupported", "wrong"]
    assert all(row["speedup"] is None and not row["cases"] for row in rows)


def test_a_trial_is_shown_with_the_median_that_everything_else_uses(tmp_path: Path) -> None:
    trial = ok_trial(0, operator="seed")
    (timing,) = trial.evaluation.timings
    timing = dataclasses.replace(timing, samples_us=(1.0, 2.0, 4.0, 8.0), baseline_us=(6.0, 8.0))
    trial = dataclasses.replace(trial, evaluation=dataclasses.replace(trial.evaluation, timings=(timing,)))
    with create(tmp_path) as store:
        fill(store, trial)
    console = Console(file=io.StringIO(), width=200)
    with RunReader(tmp_path) as run:
        show_trial(run, 0, console)
    assert "case square: 3.00 µs, seed 7.00 µs" in console.file.getvalue()
