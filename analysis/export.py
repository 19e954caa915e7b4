"""`evo export`: writes runs as files for other programs, as a whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from analysis import export_schema
from analysis.formats import FORMATS, WriteBatch
from analysis.tables import batches, metadata, named_runs, opened, to_batches
from analysis.training import tables as training
from evo.core.errors import ConfigError
from evo.llm.completions import Operators
from evo.storage.queries import RunReader
from evo.storage.tables import count_calls, has_estimates

MANIFEST = "manifest.json"
Parts = Iterator[tuple[str, pa.RecordBatch]]  # name of a table, some of its rows


@dataclass(frozen=True)
class Exported:
    """The files that an export wrote.

    `rows` by file name; `estimated`: runs with speedups that no GPU measured; `notes`: of training data, how many
    answers are not there, or not fully, and why; `asked`: whether a language model was, in any of the runs.
    """

    rows: Mapping[str, int]
    estimated: Sequence[str]
    notes: Mapping[str, int] = field(default_factory=dict)
    asked: bool = True


def export(folders: Sequence[Path], out: Path, form: str, *, with_text: bool = False) -> Exported:
    """Writes one file for each table of `export_schema.EXPORT` into the new folder `out`.  `form`: one of FORMATS.

    Raises StoreError if a folder holds no run, ConfigError if `out` exists or cannot be written.
    """

    def parts(run: str, reader: RunReader) -> Parts:
        for name in export_schema.EXPORT:
            for batch in batches(run, reader, name, with_text=with_text):
                yield name, batch

    return _export(folders, out, list(export_schema.EXPORT.values()), [form], parts)


def export_training(
    folders: Sequence[Path],
    out: Path,
    kind: str,
    *,
    operators: Operators,
    allow_estimated: bool = False,
) -> Exported:
    """Writes training data (`kind`: "sft" or "grpo") as JSON lines and as Parquet; raises as `export` does.

    operators: those that asked, by name; they read the answers again.
    """
    table = export_schema.TRAINING[kind]
    notes: Counter[str] = Counter()
    asked = 0

    def parts(run: str, reader: RunReader) -> Parts:
        nonlocal asked
        asked += count_calls(reader)
        notes["left out: no verdict yet, or the evaluator failed"] += training.unjudged(reader)
        if kind == "grpo":
            rows = training.grpo(run, reader, operators=operators, notes=notes)
        else:
            rows = training.sft(run, reader, operators=operators, allow_estimated=allow_estimated, notes=notes)
        return ((kind, batch) for batch in to_batches(rows, table))

    done = _export(folders, out, [table], ["jsonl", "parquet"], parts)
    return dataclasses.replace(done, notes={why: count for why, count in notes.items() if count}, asked=asked > 0)


def _export(
    folders: Sequence[Path],
    out: Path,
    tables: Sequence[export_schema.Table],
    forms: Sequence[str],
    parts: Callable[[str, RunReader], Parts],
) -> Exported:
    """One run after the other, so that any number of them may be exported."""
    runs = named_runs(folders)
    facts = metadata(runs)
    estimated = []
    with new_folder(out) as folder:
        with Files(folder, tables, forms, facts) as files:
            for run, path in runs.items():
                with opened(path) as reader:
                    for table, batch in parts(run, reader):
                        files.write(table, batch)
                    if has_estimates(reader):
                        estimated.append(run)
        write_manifest(folder, facts, tables, files.rows)
    return Exported(files.rows, estimated)


class Files:
    """A file for each table and format in `folder`, written batch by batch; `rows` by file name."""

    def __init__(
        self, folder: Path, tables: Sequence[export_schema.Table], forms: Sequence[str], facts: Mapping[str, Any]
    ) -> None:
        self.rows: dict[str, int] = {}
        self._writers: dict[str, list[tuple[str, WriteBatch]]] = {table.name: [] for table in tables}
        self._open = ExitStack()
        for table in tables:
            kind = table.schema({"table": table.name, **facts})
            for form in forms:
                name = f"{table.name}.{form}"
                writer = self._open.enter_context(FORMATS[form](folder / name, kind))
                self._writers[table.name].append((name, writer))
                self.rows[name] = 0

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        for name, writer in self._writers[table]:
            writer(batch)
            self.rows[name] += batch.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)


def write_manifest(
    folder: Path, facts: Mapping[str, Any], tables: Iterable[export_schema.Table], written: Mapping[str, int]
) -> None:
    """Writes the metadata of a Parquet file for readers of any format, and how many rows each file has."""
    columns = {
        table.name: [
            {"name": c.name, "type": export_schema.in_words(c.type), "unit": c.unit, "description": c.text}
            for c in table.columns
        ]
        for table in tables
    }
    text = json.dumps({**facts, "rows": written, "columns": columns}, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into that becomes `out` when all is written, and vanishes if something fails."""
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
