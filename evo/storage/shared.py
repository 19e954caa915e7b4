"""Evaluations and estimates that the runs of a campaign share: one SQLite file in the campaign's folder.

`open_shared` opens a file that several threads and processes write; the ledger is another one.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from evo.core.locks import lock
from evo.core.records import Evaluation, evaluation_from_json, evaluation_to_json

FILE = "evaluations.sqlite"
_BUSY_S = 60.0  # transactions take milliseconds, but dozens of processes may write

_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    task TEXT, candidate TEXT, evaluation TEXT NOT NULL, PRIMARY KEY (task, candidate)
);
CREATE TABLE IF NOT EXISTS screens (
    task TEXT, candidate TEXT, speedup REAL, PRIMARY KEY (task, candidate)
);
"""


def open_shared(path: Path, schema: str) -> sqlite3.Connection:
    """Returns a connection for several threads to the file `path`, made with the tables of `schema` if missing."""
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        with lock(path.with_suffix(".lock")):  # SQLite does not wait if two begin a log of writes at the same time
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


class SharedResults:
    """What is known of the candidates of one task.  Several threads and processes may use it at once."""

    def __init__(self, folder: Path, task_hash: str) -> None:
        """folder: of the campaign."""
        self._task = task_hash
        self._lock = threading.Lock()
        self._db = open_shared(folder / FILE, _SCHEMA)

    def evaluation(self, candidate: str) -> Evaluation | None:
        """Return the evaluation of a candidate (its id), None if it is unknown."""
        row = self._row("SELECT evaluation FROM evaluations WHERE task = ? AND candidate = ?", candidate)
        return None if row is None else evaluation_from_json(row[0])

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Store an evaluation; an earlier one of the same candidate stays."""
        row = (self._task, evaluation.candidate, evaluation_to_json(evaluation))
        self._write("INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?)", row)

    def screened(self, candidate: str) -> tuple[float | None] | None:
        """Return (estimated speedup,) of a candidate: (None,) if it does not compile, None if it is unknown."""
        row = self._row("SELECT speedup FROM screens WHERE task = ? AND candidate = ?", candidate)
        return None if row is None else (row[0],)

    def add_screen(self, candidate: str, speedup: float | None) -> None:
        """Store an estimated speedup; an earlier one of the same candidate stays."""
        self._write("INSERT OR IGNORE INTO screens VALUES (?, ?, ?)", (self._task, candidate, speedup))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _row(self, query: str, candidate: str) -> tuple[Any, ...] | None:
        with self._lock:
            row: tuple[Any, ...] | None = self._db.execute(query, (self._task, candidate)).fetchone()
            return row

    def _write(self, statement: str, row: tuple[Any, ...]) -> None:
        with self._lock:
            self._db.execute(statement, row)
