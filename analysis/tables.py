"""Reads runs as tables of pyarrow, in memory or batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import export_schema
from analysis.export_rows import Row, fingerprint, rows
from evo.core import VERSION
from evo.core.errors import ConfigError
from evo.core.versions import code_hash
from evo.storage.folders import check_once
from evo.storage.queries import RunReader


def load(*folders: Path | str, tables: Sequence[str] = (), with_text: bool = False) -> dict[str, pa.Table]:
    """The runs in `folders` as tables by name (none named: all); a run that goes on is read at one moment.

    Raises StoreError if a folder holds no run, ConfigError for unknown tables.
    """
    unknown = [name for name in tables if name not in export_schema.EXPORT]
    if unknown:
        raise ConfigError(f"tables: expected some of {', '.join(export_schema.EXPORT)}, got {', '.join(unknown)}")
    names = tables or tuple(export_schema.EXPORT)
    runs = named_runs(folders)
    parts: dict[str, list[pa.RecordBatch]] = {name: [] for name in names}
    for run, folder in runs.items():
        with opened(folder) as reader:
            for name in names:
                parts[name] += batches(run, reader, name, with_text=with_text)
    facts = metadata(runs)
    return {name: pa.Table.from_batches(parts[name], export_schema.EXPORT[name].schema(facts)) for name in names}


@contextmanager
def opened(folder: Path) -> Iterator[RunReader]:
    """A run as it is at one moment.  Raises StoreError if a trial has a parent that the run lacks."""
    with RunReader(folder) as reader, reader.snapshot():
        reader.check_parents()
        yield reader


def named_runs(folders: Sequence[Path | str]) -> dict[str, Path]:
    """Folder of each run by its name: the end of its path, as long as it takes to tell the runs apart.

    Raises ConfigError if a run is given twice.
    """
    check_once(folders)
    paths = [Path(folder).resolve() for folder in folders]
    names, length = [path.name for path in paths], 1
    while len(set(names)) < len(names):
        length += 1
        names = ["/".join(path.parts[-length:]) for path in paths]
    return {name: Path(folder) for name, folder in zip(names, folders, strict=True)}


def metadata(runs: Mapping[str, Path]) -> dict[str, Any]:
    """Returns the metadata of an export: versions of the tables and of the code that wrote them, and each run's own."""
    return {
        "schema_version": export_schema.VERSION,
        "written_by": {"evo": VERSION, "code": _code(), "pyarrow": pa.__version__},
        "runs": {name: _origin(folder) for name, folder in runs.items()},
    }


def _origin(folder: Path) -> dict[str, Any]:
    with RunReader(folder) as run:
        return {
            "task": run.info.config.task,
            "task_hash": run.info.task_hash,
            "versions": dict(run.info.versions),
            "fingerprint": fingerprint(run),
        }


def _code() -> str:
    """Hash of the code that reads stores and writes tables."""
    return code_hash(Path(__file__).parents[1], ("evo", "analysis"))


def batches(run: str, reader: RunReader, table: str, *, with_text: bool = False) -> Iterator[pa.RecordBatch]:
    """The run named `run` as batches of a table of `export_schema.EXPORT`."""
    named = ((run, *row) for row in rows(reader, table, with_text=with_text))
    return to_batches(named, export_schema.EXPORT[table])


def to_batches(rows: Iterable[Row], table: export_schema.Table) -> Iterator[pa.RecordBatch]:
    """Rows in the order of the table's columns, as batches: the only part of a table that is ever held."""
    kind, rest = table.schema(), iter(rows)
    while chunk := list(islice(rest, table.batch)):
        columns = zip(*chunk, strict=True)
        yield pa.record_batch([_array(column, f.type) for column, f in zip(columns, kind, strict=True)], schema=kind)


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(column, kind)
    except UnicodeEncodeError:  # messages of candidates may hold what UTF-8 cannot
        return pa.array([_utf8(value) for value in column], kind)


def _utf8(value: Any) -> Any:
    """`value` with lone surrogates made visible, however deep they lie."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_utf8(k): _utf8(v) for k, v in value.items()}
    return [_utf8(v) for v in value] if isinstance(value, list) else value
