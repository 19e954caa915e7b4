"""`evo export`: runs as files that others read, written as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import schema, training
from analysis.formats import FORMATS
from analysis.tables import batches, metadata, opened, to_batches
from evo.errors import ConfigError
from evo.store import RunReader

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Exported:
    """What was written: rows by file name, the runs with speedups that no GPU measured, what was left out and why."""

    rows: Mapping[str, int]
    estimated: Sequence[str]
    left_out: Mapping[str, int] = field(default_factory=dict)


def export(folders: Sequence[Path], out: Path, form: str, *, with_text: bool = False) -> Exported:
    """Writes one file for each table of `schema.EXPORT` into the new folder `out`.  `form`: one of FORMATS.

    Raises StoreError where a folder holds no run, ConfigError where `out` exists or cannot be written.
    """
    with opened(folders) as runs, new_folder(out) as folder:
        facts = metadata(runs)
        written: dict[str, int] = {}
        for table in schema.EXPORT.values():
            parts = (batch for run in runs.items() for batch in batches(run, table.name, with_text=with_text))
            written |= write(folder, table, facts, parts, [form])
        write_manifest(folder, facts, schema.EXPORT.values(), written)
        return Exported(written, estimated_runs(runs))


def export_training(folders: Sequence[Path], out: Path, kind: str, *, allow_estimated: bool = False) -> Exported:
    """Writes training data (`kind`: "sft" or "grpo") as JSON lines and as Parquet; raises as `export` does."""
    left_out: Counter[str] = Counter()
    table = schema.TRAINING[kind]
    with opened(folders) as runs, new_folder(out) as folder:
        left_out["no verdict yet, or the evaluator failed"] = sum(map(training.unjudged, runs.values()))
        rows = (
            row
            for run in runs.items()
            for row in (
                training.grpo(*run)
                if kind == "grpo"
                else training.sft(*run, allow_estimated=allow_estimated, left_out=left_out)
            )
        )
        facts = metadata(runs)
        written = write(folder, table, facts, to_batches(rows, table), ("jsonl", "parquet"))
        write_manifest(folder, facts, [table], written)
        return Exported(written, estimated_runs(runs), {why: n for why, n in left_out.items() if n})


def write(
    folder: Path, table: schema.Table, facts: Mapping[str, Any], parts: Iterable[pa.RecordBatch], forms: Sequence[str]
) -> dict[str, int]:
    """One pass over `parts`, into one file a format; rows by file name."""
    kind = table.schema({"table": table.name, **facts})
    names = [f"{table.name}.{form}" for form in forms]
    rows = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(FORMATS[form](folder / name, kind)) for form, name in zip(forms, names, strict=True)
        ]
        for batch in parts:
            rows += batch.num_rows
            for writer in writers:
                writer(batch)
    return dict.fromkeys(names, rows)


def write_manifest(
    folder: Path, facts: Mapping[str, Any], tables: Iterable[schema.Table], written: Mapping[str, int]
) -> None:
    """What a Parquet file says of itself, for readers of any format, and how many rows each file has."""
    columns = {
        table.name: [
            {"name": c.name, "type": schema.in_words(c.type), "unit": c.unit, "description": c.text}
            for c in table.columns
        ]
        for table in tables
    }
    text = json.dumps({**facts, "rows": written, "columns": columns}, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def estimated_runs(runs: Mapping[str, RunReader]) -> list[str]:
    """Names of the runs with a speedup that a model computed."""
    query = "SELECT EXISTS (SELECT 1 FROM evaluations WHERE estimated)"
    return [name for name, run in runs.items() if next(run.rows(query))[0]]


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into that becomes `out` when all is written, and vanishes where something fails."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"--out: expected a path where nothing is yet, but {out} exists; choose another or remove it")
    try:
        folder = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--out: expected to make {out}, got: {error}; choose another place") from error
    try:
        yield folder
        folder.rename(out)
    except OSError as error:
        raise ConfigError(f"--out: expected to write {out}, got: {error}; free disk space or choose another") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
