"""Stores the evaluations that a service accepted: one SQLite file in the service's folder.

A request is stored before it is answered, a result before a client sees it.  So work that was accepted survives
`kill -9`, and what is finished is never evaluated again.  One process uses a folder at a time.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evo.core.errors import StoreError
from evo.core.text import quoted, storable

FILE = "service.sqlite"
LOCK = "service.lock"
_SCHEMA_VERSION = 1
_SCHEMA = f"""
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE tasks (name TEXT PRIMARY KEY, hash TEXT NOT NULL, token TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE evaluations (
    id TEXT PRIMARY KEY, task TEXT NOT NULL, source TEXT NOT NULL, state TEXT NOT NULL,
    verdict TEXT, evaluation TEXT, error TEXT, accepted REAL NOT NULL, started REAL, ended REAL,
    token TEXT NOT NULL, client TEXT NOT NULL
);
CREATE INDEX waiting ON evaluations (accepted) WHERE state = 'queued';
CREATE TABLE askers (
    id TEXT NOT NULL, token TEXT NOT NULL, client TEXT NOT NULL, PRIMARY KEY (id, token, client)
) WITHOUT ROWID;
PRAGMA user_version = {_SCHEMA_VERSION};
COMMIT;
"""
QUEUED, DONE, FAILED, CANCELLED = "queued", "done", "failed", "cancelled"


@dataclass(frozen=True)
class Caller:
    """Who asks: the name of a token, and the name that a client gives itself, "" for none."""

    token: str
    client: str = ""


@dataclass(frozen=True)
class Job:
    """An evaluation to do: its id, the hash of its task, and who asked first."""

    id: str
    task: str
    caller: Caller


@dataclass(frozen=True)
class StoredRequest:
    """An accepted evaluation.

    Times are seconds since 1970; `verdict` and `evaluation` (JSON) are "" unless the state is done.
    """

    state: str  # QUEUED (also while it runs), DONE, FAILED (with `error`) or CANCELLED
    accepted: float
    started: float | None
    ended: float | None
    verdict: str
    evaluation: str
    error: str


class RequestStore:
    """The accepted evaluations of a service.  Threads may share it."""

    def __init__(self, folder: Path, meta: Mapping[str, str]) -> None:
        """Opens the file in `folder`; both are made if missing.

        meta: what evaluates.  Raises StoreError if another process uses the folder, or something else evaluated there.
        """
        self._lock = threading.Lock()
        self._folder = folder
        self._file = _take_lock(folder)
        try:
            self._db = _open(folder / FILE)
            _check_meta(self._db, folder, meta)
        except BaseException:
            self._file.close()
            raise

    # --- evaluations -------------------------------------------------------------------------------------------------

    def accept(self, jobs: Sequence[Job], sources: Sequence[str], at: float) -> None:
        """Stores requests, one source each.  A request that is there already is queued again."""
        rows = [
            (job.id, job.task, source, at, job.caller.token, job.caller.client)
            for job, source in zip(jobs, sources, strict=True)
        ]
        with self._writing() as db:
            db.executemany(
                f"""INSERT INTO evaluations (id, task, source, state, accepted, token, client)
                    VALUES (?, ?, ?, '{QUEUED}', ?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET state = '{QUEUED}', verdict = NULL, evaluation = NULL, error = NULL,
                    started = NULL, ended = NULL, accepted = excluded.accepted, token = excluded.token,
                    client = excluded.client""",
                rows,
            )
            db.executemany(_ASK, [(job.id, job.caller.token, job.caller.client) for job in jobs])

    def asked(self, ids: Sequence[str], caller: Caller) -> None:
        """Notes that `caller` asked for these too, so that another cannot cancel them."""
        with self._writing() as db:
            db.executemany(_ASK, [(each, caller.token, caller.client) for each in ids])

    def askers(self, evaluation: str) -> list[Caller]:
        """Everyone who asked for an evaluation."""
        with self._reading() as db:
            return [Caller(*row) for row in db.execute("SELECT token, client FROM askers WHERE id = ?", (evaluation,))]

    def find(self, evaluation: str) -> StoredRequest | None:
        """What is known of an evaluation (its id); None if it was never accepted."""
        query = "SELECT state, accepted, started, ended, verdict, evaluation, error FROM evaluations WHERE id = ?"
        with self._reading() as db:
            row = db.execute(query, (evaluation,)).fetchone()
        return None if row is None else StoredRequest(*row[:4], *(text or "" for text in row[4:]))

    def source(self, evaluation: str) -> str:
        """The source of an accepted evaluation."""
        with self._reading() as db:
            (source,) = db.execute("SELECT source FROM evaluations WHERE id = ?", (evaluation,)).fetchone()
            return str(source)

    def finish(
        self,
        evaluation: str,
        state: str,
        *,
        verdict: str = "",
        result: str = "",
        error: str = "",
        started: float | None,
        ended: float,
    ) -> None:
        """Stores how an evaluation ended: its result as JSON, or an error; `started` is None if it never ran."""
        row = (state, verdict or None, result or None, storable(error) or None, started, ended, evaluation)
        with self._writing() as db:
            db.execute(
                """UPDATE evaluations SET state = ?, verdict = ?, evaluation = ?, error = ?, started = ?, ended = ?
                   WHERE id = ?""",
                row,
            )

    def ids(self) -> list[str]:
        """The ids of all accepted evaluations, in the order they were accepted."""
        with self._reading() as db:
            return [found for (found,) in db.execute("SELECT id FROM evaluations ORDER BY accepted, rowid")]

    def queued(self) -> list[Job]:
        """What was accepted and is not finished, in the order it was accepted."""
        query = f"SELECT id, task, token, client FROM evaluations WHERE state = '{QUEUED}' ORDER BY accepted, rowid"
        with self._reading() as db:
            return [Job(id, task, Caller(token, client)) for id, task, token, client in db.execute(query)]

    # --- uploaded tasks ----------------------------------------------------------------------------------------------

    def add_task(self, name: str, task_hash: str, token: str, at: float) -> None:
        """Notes an uploaded task; one that is there already stays."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?)", (name, task_hash, token, at))

    def tasks(self) -> list[tuple[str, str, str]]:
        """(name, hash, token) of the uploaded tasks, the oldest first."""
        with self._reading() as db:
            return list(db.execute("SELECT name, hash, token FROM tasks ORDER BY at, name"))

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction.  Raises StoreError if it cannot be written; then nothing of it is."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise StoreError(
                        f"expected to write to {self._folder / FILE}, got: {error}; free disk space or check the "
                        "permissions"
                    ) from error
                raise


_ASK = "INSERT OR IGNORE INTO askers VALUES (?, ?, ?)"


def _take_lock(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise StoreError(f"expected to write to {folder}, got: {error}; name another folder by --dir") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreError(
            f"{quoted(folder)} is in use by another process of evo; stop that one, or name another folder by --dir"
        ) from None
    return file


def _open(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL survives a killed process; a power cut may cost the last transactions, never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(_SCHEMA)
        elif version != _SCHEMA_VERSION:
            db.close()
            raise StoreError(
                f"expected schema {_SCHEMA_VERSION} in {path}, got {version}; name another folder by --dir"
            )
    except sqlite3.Error as error:
        raise StoreError(f"expected the store of a service in {path}, got: {error}; name another by --dir") from error
    return db


def _check_meta(db: sqlite3.Connection, folder: Path, meta: Mapping[str, str]) -> None:
    """Stores what evaluates, or raises StoreError if the folder's results come from something else."""
    text = json.dumps(dict(meta), sort_keys=True)
    row = db.execute("SELECT value FROM meta WHERE key = 'evaluator'").fetchone()
    if row is None:
        db.execute("INSERT INTO meta VALUES ('evaluator', ?)", (text,))
        return
    before = json.loads(row[0])
    names = sorted(name for name in {*before, *meta} if before.get(name) != meta.get(name))
    if names:
        db.close()
        differing = ", ".join(f"{name} {before.get(name, 'none')} then, {meta.get(name, 'none')} now" for name in names)
        raise StoreError(
            f"the results in {quoted(folder)} come from another evaluator ({differing}), so they are not comparable; "
            "name another folder by --dir"
        )
