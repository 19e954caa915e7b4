"""Writes the file formats of an export, batch by batch, without ever holding a table."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

WriteBatch = Callable[[pa.RecordBatch], Any]
Format = Callable[[Path, pa.Schema], AbstractContextManager[WriteBatch]]


@contextmanager
def parquet(path: Path, schema: pa.Schema) -> Iterator[WriteBatch]:
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextmanager
def csv(path: Path, schema: pa.Schema) -> Iterator[WriteBatch]:
    """Lists, structures and maps become JSON.  Null is an empty field, an empty text is `""`."""
    flat = pa.schema([pa.field(f.name, pa.string()) if pa.types.is_nested(f.type) else f for f in schema])

    def write(batch: pa.RecordBatch) -> None:
        columns = [_as_json(column) if pa.types.is_nested(column.type) else column for column in batch.columns]
        writer.write_batch(pa.record_batch(columns, schema=flat))

    with pyarrow.csv.CSVWriter(path, flat) as writer:
        yield write


@contextmanager
def jsonl(path: Path, schema: pa.Schema) -> Iterator[WriteBatch]:
    """One object a row.  Times are ISO 8601; numbers that JSON lacks are "NaN", "Infinity" and "-Infinity"."""
    names = schema.names

    def write(batch: pa.RecordBatch) -> None:
        columns = [_plain_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            file.write(_dumps(dict(zip(names, row, strict=True))) + "\n")

    with open(path, "w", encoding="utf-8") as file:
        yield write


FORMATS: dict[str, Format] = {"parquet": parquet, "csv": csv, "jsonl": jsonl}


def _as_json(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else _dumps(value) for value in _plain_values(column)], pa.string())


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _plain_values(column: pa.Array) -> list[Any]:
    """Values as JSON knows them."""
    plain = _plain(column.type)
    values = column.to_pylist()
    return values if plain is None else [None if value is None else plain(value) for value in values]


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns the function that turns a value of this type (not null) into JSON; None if JSON has the type."""
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_timestamp(kind):
        return datetime.datetime.isoformat
    if pa.types.is_map(kind):
        item = _or_null(_plain(kind.item_type))
        return lambda pairs: {key: item(value) for key, value in pairs}
    if pa.types.is_struct(kind):
        parts = {field.name: _or_null(_plain(field.type)) for field in kind}
        return lambda value: {name: part(value[name]) for name, part in parts.items()}
    if pa.types.is_list(kind):
        each = _or_null(_plain(kind.value_type))
        return lambda values: [each(value) for value in values]
    return None


def _or_null(plain: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda value: value if plain is None or value is None else plain(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
