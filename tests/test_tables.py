"""analysis.tables and analysis.export_rows: what is loaded is what is stored."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import analysis
import analysis.tables
from analysis import export_schema
from analysis.benchmarks import bench_export
from analysis.tables import named_runs
from evo.core.errors import ConfigError, StoreError
from evo.core.records import Trial, evaluation_from_json, evaluation_to_json
from evo.storage.queries import RunReader
from tests.analysis_support import CALLS, ODD, PENDING, PROFILE, fill, grow, stored, trials
from tests.engine_support import create, ok_trial


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "instant-001"
    fill(folder)
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, pa.Table]:
    return analysis.load(folder, with_text=True)


def by_trial(table: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["trial"]: row for row in table.to_pylist()}


def test_every_table_has_the_columns_of_the_schema_and_says_where_it_comes_from(tables: dict[str, pa.Table]) -> None:
    assert list(tables) == list(export_schema.EXPORT)
    for name, table in tables.items():
        assert table.schema.equals(export_schema.EXPORT[name].schema())
        assert set(table["run"].to_pylist()) == {"instant-001"}, name
        assert json.loads(table.schema.metadata[b"evo"])["schema_version"] == export_schema.VERSION


def test_trials_are_those_of_the_store_pending_ones_too(tables: dict[str, pa.Table]) -> None:
    rows = by_trial(tables["trials"])
    assert list(rows) == list(range(9))
    for position, trial in enumerate(trials(), 1):
        row, made = rows[trial.index], trial.proposal
        assert (row["candidate"], row["operator"], row["note"]) == (made.candidate.id, made.operator, made.note)
        assert (tuple(row["parents"]), row["island"], row["seed"]) == (made.parents, made.island, made.seed)
        assert dict(row["cost"]) == made.cost
        assert (row["finished"], row["verdict"], row["stage"]) == (
            position,
            trial.evaluation.verdict,
            trial.evaluation.stage,
        )
        assert_fitness(row, trial)
        assert row["seconds"] == pytest.approx((row["finished_at"] - row["proposed_at"]).total_seconds(), abs=2e-6)
    waiting = rows[PENDING.index]
    assert waiting["note"] == "waits"
    assert {waiting[c] for c in ("finished", "finished_at", "verdict", "stage", "speedup", "estimated")} == {None}


def assert_fitness(row: dict[str, Any], trial: Trial) -> None:
    fitness = trial.fitness
    expected = (fitness.speedup, *fitness.ci95, fitness.estimated) if fitness else (None,) * 4
    assert (row["speedup"], row["ci_low"], row["ci_high"], row["estimated"]) == expected


def test_evaluations_hold_all_that_the_evaluator_found(tables: dict[str, pa.Table]) -> None:
    rows = tables["evaluations"].to_pylist()
    assert [row["trial"] for row in rows] == [trial.index for trial in trials()]
    for row, trial in zip(rows, trials(), strict=True):
        e = trial.evaluation
        assert_fitness(row, trial)
        assert (row["verdict"], row["rank"]) == (e.verdict, e.verdict.rank)
        assert row["message"] == e.message.replace("\ud800", "\\ud800")
        assert [(f["rule"], f["line"]) for f in row["findings"]] == [(f.rule, f.line) for f in e.findings]
        assert [(b["kernel"], b["registers"], b["sass_hash"]) for b in row["builds"]] == [
            (b.kernel, b.registers, b.sass_hash) for b in e.builds
        ]
        assert (row["check_cases"], row["check_max_error"]) == ((2, 0.5) if e.check else (None, None))
        assert row["duplicate_of"] == (e.duplicate_of or None)
        cases = {case["case"]: case for case in row["cases"]}
        assert {name: case["speedup"] for name, case in cases.items()} == (
            dict(trial.fitness.per_case) if trial.fitness else {}
        )
        assert {n: (c["ratio"], c["ci_low"], c["estimated"], dict(c["terms"])) for n, c in cases.items()} == {
            t.case: (t.ratio, t.ci95[0], t.estimated, t.terms) for t in e.timings
        }


def test_text_that_is_not_utf_8_is_made_visible(tables: dict[str, pa.Table]) -> None:
    (row,) = (row for row in tables["evaluations"].to_pylist() if row["verdict"] == "rejected")
    assert row["message"] == row["findings"][0]["message"] == ODD.replace("\ud800", "\\ud800")


def test_every_sample_of_every_timing_is_there(tables: dict[str, pa.Table]) -> None:
    expected = [
        (trial.index, timing.case, i, ours, seed, timing.attainable_us, timing.estimated)
        for trial in trials()
        for timing in trial.evaluation.timings
        for i, (ours, seed) in enumerate(zip(timing.samples_us, timing.baseline_us, strict=True))
    ]
    assert [tuple(row.values())[1:] for row in tables["timings"].to_pylist()] == expected
    assert {row[-1] for row in expected} == {True, False}


def test_lineage_has_a_row_for_each_parent(tables: dict[str, pa.Table]) -> None:
    edges = {(row["trial"], row["parent"]): row for row in tables["lineage"].to_pylist()}
    proposals = [trial.proposal for trial in trials()] + [PENDING]
    assert set(edges) == {(p.index, parent) for p in proposals for parent in p.parents}
    mixed = edges[6, 2]
    assert (mixed["position"], edges[6, 1]["position"]) == (0, 1)
    assert (mixed["speedup"], mixed["parent_speedup"], mixed["gain"], mixed["estimated"]) == (1.5, 3.0, 0.5, True)
    assert edges[2, 0]["estimated"] is False
    assert (edges[5, 2]["gain"], edges[5, 2]["estimated"]) == (None, False)
    assert (edges[8, 6]["speedup"], edges[8, 6]["parent_speedup"]) == (None, 1.5)


def test_sources_come_with_the_frozen_ones(tables: dict[str, pa.Table]) -> None:
    rows = by_trial(tables["sources"])
    assert {i: row["text"] for i, row in rows.items()} == {i: f"x = {i}\n" for i in range(9)}
    assert {i for i, row in rows.items() if row["frozen_text"]} == {0, 1, 2}
    assert rows[2]["frozen_text"] == "frozen = 2\n"


def test_the_row_of_a_run_sums_it_up(tables: dict[str, pa.Table], folder: Path) -> None:
    (row,) = tables["runs"].to_pylist()
    assert (row["trials"], row["finished"], row["ok"]) == (9, 8, 4)
    assert (row["best_trial"], row["best_speedup"], row["estimated"]) == (2, 3.0, False)
    assert (row["task"], row["task_hash"], row["last_event"]) == ("instant", "hash", "started")
    assert dict(row["versions"]) == {"evo": "1"}
    assert json.loads(row["environment"]) == {"sandbox": {"seccomp": "active"}}
    with RunReader(folder) as run:
        assert row["config"] == run.info.config.to_json()


def test_profiles_and_calls_are_there(tables: dict[str, pa.Table], folder: Path) -> None:
    (profile,) = tables["profiles"].to_pylist()
    assert (profile["trial"], profile["tier"], profile["bottleneck"]) == (2, "ncu", "memory")
    assert (dict(profile["numbers"]), profile["roofline"]) == (PROFILE.numbers, PROFILE.roofline)
    assert (profile["case"], profile["kernel"], dict(profile["metrics"])) == ("square", "kernel", PROFILE.metrics)
    assert profile["hints"] == [{"id": "tile", "action": "tile it"}]
    calls = tables["llm_calls"].to_pylist()
    assert [(c["trial"], c["answer"]) for c in calls] == [(trial, answer) for trial, _, answer in CALLS]
    assert [c["request"] for c in calls] == [
        r for (r,) in stored(folder, "SELECT request FROM llm_calls ORDER BY call")
    ]
    assert calls[0]["asked_at"].timestamp() == pytest.approx(1.7e9 + 0.123456, abs=1e-6)
    assert (calls[-1]["error"], calls[-1]["answered_at"], calls[-1]["tokens_out"]) == ("timed out", None, None)


def test_texts_of_calls_are_left_out_unless_asked_for(folder: Path) -> None:
    calls = analysis.load(folder, tables=("llm_calls",))["llm_calls"]
    assert len(calls) == len(CALLS)
    assert [calls[c].null_count for c in ("request", "answer", "reasoning")] == [len(CALLS)] * 3


def test_batches_are_bounded_and_lose_nothing(
    folder: Path, tables: dict[str, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {name: dataclasses.replace(table, batch=2) for name, table in export_schema.EXPORT.items()}
    monkeypatch.setattr(export_schema, "EXPORT", small)
    loaded = analysis.load(folder, with_text=True)
    assert [len(chunk) for chunk in loaded["trials"]["trial"].chunks] == [2, 2, 2, 2, 1]
    assert all(loaded[name].equals(tables[name]) for name in tables)


def test_a_running_run_is_read_at_one_moment(tmp_path: Path) -> None:
    with create(tmp_path / "run") as store:
        store.proposed(ok_trial(0).proposal)
        store.finished(ok_trial(0))
        with analysis.tables.opened(tmp_path / "run") as reader:
            grow(store, 1)
            assert [row[0] for row in analysis.export_rows.rows(reader, "trials")] == [0]
            assert [row[1] for row in analysis.export_rows.rows(reader, "evaluations")] == [0]
        grow(store, 2)
        loaded = analysis.load(tmp_path / "run")
        assert loaded["trials"]["trial"].to_pylist() == [0, 1, 2]
        assert loaded["runs"]["estimated"].to_pylist() == [True]


def test_several_runs_share_the_tables(folder: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other")
    both = analysis.load(folder, tmp_path / "other")
    for name, table in both.items():
        counts = table["run"].value_counts().to_pylist()
        assert {c["values"]: c["counts"] for c in counts}.keys() == {"instant-001", "other"}, name
        assert len({c["counts"] for c in counts}) == 1, name
    facts = json.loads(both["trials"].schema.metadata[b"evo"])["runs"]
    assert facts["other"]["fingerprint"] == facts["instant-001"]["fingerprint"]


def test_runs_are_told_apart_by_as_much_of_their_path_as_it_takes(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x" / "run", tmp_path / "b" / "x" / "run", tmp_path / "b" / "y" / "other"]
    assert named_runs(paths) == dict(zip(["a/x/run", "b/x/run", "b/y/other"], paths, strict=True))
    assert list(named_runs(paths[1:])) == ["run", "other"]
    with pytest.raises(ConfigError, match="each run once"):
        named_runs([paths[0], paths[0].parent / "." / "run"])


def test_an_empty_run_gives_empty_tables(tmp_path: Path) -> None:
    create(tmp_path).close()
    loaded = analysis.load(tmp_path)
    assert {name: len(table) for name, table in loaded.items() if len(table)} == {"runs": 1}
    assert loaded["runs"]["best_speedup"].to_pylist() == loaded["runs"]["estimated"].to_pylist() == [None]


def test_what_cannot_be_loaded_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StoreError, match="expected a run in"):
        analysis.load(tmp_path)
    with pytest.raises(ConfigError, match=r"tables: expected some of runs, .* got nonsense"):
        analysis.load(folder, tables=("nonsense",))


def test_numbers_beyond_the_finite_are_kept(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        trial = ok_trial(0, cost={"seconds": math.inf})
        store.proposed(trial.proposal)
    assert dict(analysis.load(tmp_path)["trials"]["cost"][0].as_py()) == {"seconds": math.inf}


def test_the_store_of_the_benchmark_is_like_a_real_one(tmp_path: Path) -> None:
    bench_export.build(tmp_path, 200)
    loaded = analysis.load(tmp_path)
    assert {name: len(table) for name, table in loaded.items()} == {
        "runs": 1, "trials": 200, "lineage": 199, "evaluations": 200, "timings": 170 * 2 * 10, "profiles": 0,
        "llm_calls": 20, "sources": 200,
    }  # fmt: skip
    with RunReader(tmp_path) as run:
        assert [evaluation_to_json(evaluation_from_json(e)) for (e,) in run.rows(EVALUATIONS)] == [
            json.dumps(json.loads(e), sort_keys=True) for (e,) in run.rows(EVALUATIONS)
        ]


EVALUATIONS = "SELECT evaluation FROM evaluations ORDER BY trial"
