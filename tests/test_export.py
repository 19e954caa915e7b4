"""analysis.export, analysis.formats and `evo export`: files that others read, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import analysis
import analysis.export
from analysis import export_schema
from analysis.export import export, new_folder
from analysis.formats import FORMATS
from evo.cli.main import main
from evo.core.errors import ConfigError
from evo.storage.folders import FILE
from tests.analysis_support import fill, grow
from tests.engine_support import create, ok_trial, search


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "instant-001"
    fill(folder)
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the real engine."""
    folder = tmp_path_factory.mktemp("runs") / "searched"
    with create(folder, budget=60) as store:
        search(store)
    return folder


@pytest.fixture(scope="module")
def out(run: Path, searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs in all formats: OUT/FORMAT/TABLE.FORMAT."""
    out = tmp_path_factory.mktemp("out")
    for form in FORMATS:
        export([run, searched], out / form, form, with_text=True)
    return out


@pytest.fixture(scope="module")
def loaded(run: Path, searched: Path) -> dict[str, pa.Table]:
    return analysis.load(run, searched, with_text=True)


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", export_schema.EXPORT)
def test_parquet_round_trip(name: str, out: Path, loaded: dict[str, pa.Table]) -> None:
    path = out / "parquet" / f"{name}.parquet"
    table = pq.read_table(path)
    assert table.equals(loaded[name])
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    for field, column in zip(table.schema, export_schema.EXPORT[name].columns, strict=True):
        assert field.metadata[b"unit"].decode() == column.unit
        assert field.metadata[b"description"].decode() == column.text


@pytest.mark.parametrize("name", export_schema.EXPORT)
def test_jsonl_round_trip(name: str, out: Path, loaded: dict[str, pa.Table]) -> None:
    lines = (out / "jsonl" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [list(row) for row in rows] == [loaded[name].column_names] * len(loaded[name])
    assert rows == [plain(row) for row in loaded[name].to_pylist()]


@pytest.mark.parametrize("name", export_schema.EXPORT)
def test_csv_round_trip(name: str, out: Path, loaded: dict[str, pa.Table]) -> None:
    kinds = {f.name: pa.string() if pa.types.is_nested(f.type) else f.type for f in loaded[name].schema}
    read = pyarrow.csv.read_csv(
        out / "csv" / f"{name}.csv",
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=kinds, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    for column in loaded[name].column_names:
        values, expected = read[column].to_pylist(), loaded[name][column].to_pylist()
        if pa.types.is_nested(loaded[name][column].type):
            values, expected = [v if v is None else json.loads(v) for v in values], [plain(v) for v in expected]
        assert values == expected, column


def plain(value: Any) -> Any:
    """What JSON makes of a value that pyarrow gave."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(item, tuple) for item in value)
        return {key: plain(item) for key, item in value} if pairs else [plain(item) for item in value] or EMPTY
    return value.isoformat() if hasattr(value, "isoformat") else value


class _Empty:
    """An empty list of pyarrow may be an empty map: equals both."""

    def __eq__(self, other: object) -> bool:
        return other in ([], {})


EMPTY = _Empty()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_numbers_that_json_lacks_are_named(form: str, tmp_path: Path) -> None:
    kind = pa.schema([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.float64()))])
    values = [1.5, math.inf, -math.inf, math.nan, None]
    batch = pa.record_batch([values, pa.array([{"v": v} for v in values], kind[1].type)], schema=kind)
    with FORMATS[form](tmp_path / "file", kind) as write:
        write(batch)
    text = (tmp_path / "file").read_text()
    named = [1.5, "Infinity", "-Infinity", "NaN", None]
    if form == "jsonl":
        assert [json.loads(line) for line in text.splitlines()] == [{"x": v, "m": {"v": v}} for v in named]
    else:
        cells = [line.split(",", 1)[1] for line in text.splitlines()[1:]]
        assert [json.loads(c[1:-1].replace('""', '"')) for c in cells] == [{"v": v} for v in named]


# --- other programs --------------------------------------------------------------------------------------------------


def test_duckdb_reads_it(out: Path, searched: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as db:
        path = out / "parquet"
        for name, table in analysis.load(searched).items():
            query = f"SELECT count(*) FROM '{path / name}.parquet' WHERE run = 'searched'"
            assert db.execute(query).fetchone() == (len(table),), name
        best = db.execute(f"""
            SELECT trial, speedup, estimated FROM '{path}/trials.parquet'
            WHERE run = 'searched' ORDER BY speedup DESC NULLS LAST, finished LIMIT 1
        """).fetchone()
        runs = pq.read_table(path / "runs.parquet").to_pylist()
        assert best == tuple(runs[1][c] for c in ("best_trial", "best_speedup", "estimated"))
        terms = db.execute(f"""
            SELECT c."case", c.speedup, c.terms['memory']
            FROM (SELECT unnest(cases) AS c FROM '{path}/evaluations.parquet' WHERE run = 'instant-001' AND trial = 6)
        """).fetchall()
        assert terms == [("square", 1.0, 0.5), ("wide", 2.25, 0.5)]
        for form in ("csv", "jsonl"):
            found = db.execute(f"SELECT count(*), max(speedup) FROM '{out}/{form}/trials.{form}'").fetchone()
            trials = pq.read_table(path / "trials.parquet").to_pylist()
            assert found == (len(trials), max(t["speedup"] or 0 for t in trials))


def test_polars_reads_it(out: Path, loaded: dict[str, pa.Table]) -> None:
    polars = pytest.importorskip("polars")
    for name, table in loaded.items():
        frame = polars.read_parquet(out / "parquet" / f"{name}.parquet")
        assert (frame.height, frame.columns) == (len(table), table.column_names)
    frame = polars.read_parquet(out / "parquet" / "trials.parquet")
    assert frame["speedup"].to_list() == loaded["trials"]["speedup"].to_pylist()
    assert frame["proposed_at"].to_list() == loaded["trials"]["proposed_at"].to_pylist()
    assert frame["parents"].to_list() == loaded["trials"]["parents"].to_pylist()


def test_pandas_reads_it(out: Path, loaded: dict[str, pa.Table]) -> None:
    pandas = pytest.importorskip("pandas")
    for name, table in loaded.items():
        frame = pandas.read_parquet(out / "parquet" / f"{name}.parquet")
        assert (len(frame), list(frame.columns)) == (len(table), table.column_names)
    frame = pandas.read_parquet(out / "parquet" / "timings.parquet")
    means = frame[frame.run == "instant-001"].groupby(["trial", "case"]).candidate_us.mean()
    assert means[2, "square"] == pytest.approx(10 + (0 + 1 + 2 + 3) / 7 / 4)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_the_manifest_says_what_is_there(out: Path, loaded: dict[str, pa.Table]) -> None:
    for form in FORMATS:
        manifest = json.loads((out / form / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["rows"] == {f"{name}.{form}": len(table) for name, table in loaded.items()}
        assert manifest["schema_version"] == export_schema.VERSION
        assert manifest["written_by"]["pyarrow"] == pa.__version__
        assert re.fullmatch("[0-9a-f]{12}", manifest["written_by"]["code"])
        facts = manifest["runs"]["instant-001"]
        assert facts["task_hash"] == "hash" and facts["versions"] == {"evo": "1"}
        assert facts["fingerprint"] == loaded["runs"]["fingerprint"][0].as_py()
        assert {f.name for f in (out / form).iterdir()} == {*manifest["rows"], "manifest.json"}


def test_what_exists_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("keep")
    with pytest.raises(ConfigError, match=r"nothing is yet, but .*taken exists; choose another or remove it"):
        export([run], tmp_path / "taken", "csv")
    assert [f.name for f in tmp_path.rglob("*")] == ["taken", "mine"]


def test_what_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(analysis.export, "write_manifest", fail)
    with pytest.raises(ConfigError, match=r"expected to write .*No space left.*free disk space"):
        export([run], tmp_path / "out", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with new_folder(out) as folder:
        (folder / "file").write_text("x")
        assert not out.exists()
    assert [f.name for f in out.parent.iterdir()] == ["out"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="expected to make"), new_folder(tmp_path / "file" / "out"):
        pass


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_what_is_estimated(
    run: Path, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(searched), str(run), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/out/trials.parquet: 70 rows\n" in said
    assert "estimated, not measured: the speedups of searched, instant-001\n" in said
    calls = pq.read_table(tmp_path / "out" / "llm_calls.parquet")
    assert calls["answer"].null_count == len(calls) > 0


@pytest.mark.parametrize("form", ["parquet", "sft"])
def test_a_damaged_run_is_refused(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE proposals SET parents = '[77]' WHERE trial = 2")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--format", form]) == 2
    assert "got in table proposals, trial 2: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["sft", "grpo"])
def test_training_data_of_runs_without_a_model_is_said_to_be_none(
    form: str, run: Path, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "no language model was asked in these runs"
    assert main(["export", str(searched), "--out", str(tmp_path / "none"), "--format", form]) == 0
    assert said in capsys.readouterr().out
    assert main(["export", str(searched), str(run), "--out", str(tmp_path / "some"), "--format", form]) == 0
    assert said not in capsys.readouterr().out


def test_every_speedup_says_whether_it_is_estimated(out: Path) -> None:
    for name, column in (
        ("trials", "speedup"),
        ("evaluations", "speedup"),
        ("lineage", "gain"),
        ("runs", "best_speedup"),
    ):
        rows = pq.read_table(out / "parquet" / f"{name}.parquet").to_pylist()
        found = {row["estimated"] for row in rows if row[column] is not None}
        assert found == {True, False}, name
        assert all(row["estimated"] is True for row in rows if row["run"] == "searched" and row[column] is not None)


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [f"{arm}/{seed}" for arm in ("full", "none") for seed in range(4)]
    for cell in cells:
        with create(tmp_path / "campaign" / cell) as store:
            grow(store, 0)
    assert main(["export", str(tmp_path / "campaign"), "--out", str(tmp_path / "out")]) == 0
    runs = pq.read_table(tmp_path / "out" / "runs.parquet").to_pylist()
    assert [row["run"] for row in runs] == cells
    said = capsys.readouterr().out
    assert "the speedups of full/0, full/1, full/2, full/3, none/0 and 3 more\n" in said
    assert [row["folder"] for row in runs] == [str(tmp_path / "campaign" / row["run"]) for row in runs]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--out", "out"], "expected a run in nowhere, found no run.sqlite"),
        (
            ["RUN", "--out", "out", "--format", "xls"],
            "--format: expected one of parquet, csv, jsonl, sft, grpo, got 'xls'",
        ),
        (["RUN", "RUN", "--out", "out"], "runs: expected each run once"),
        (["RUN", "--out", "RUN"], "exists; choose another or remove it"),
        (
            ["RUN", "--out", "out", "--format", "sft", "--with-text"],
            "--with-text: expected --format parquet, csv, jsonl",
        ),
        (["RUN", "--out", "out", "--allow-estimated"], "--allow-estimated: expected --format sft, got parquet"),
    ],
)
def test_misuse_is_told(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *(str(run) if a == "RUN" else a for a in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_the_command_says_what_to_install(run: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['pyarrow'] = None\nfrom evo.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "export", str(run), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install -e "."' in done.stderr and "Traceback" not in done.stderr


def test_a_run_is_exported_while_it_is_written(tmp_path: Path) -> None:
    with create(tmp_path / "run") as store:
        for index in range(3):
            store.proposed(ok_trial(index).proposal)
        store.finished(ok_trial(1))
        assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
        store.finished(ok_trial(0))
    trials = pq.read_table(tmp_path / "out" / "trials.parquet").to_pylist()
    assert [(t["trial"], t["finished"]) for t in trials] == [(0, None), (1, 1), (2, None)]
