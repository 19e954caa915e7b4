"""The file of a run: its tables (`docs/store.md`), connections to it, and errors that name what is damaged in it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.core.errors import StoreError
from evo.core.records import surely_faster
from evo.core.text import quoted
from evo.storage import folders
from evo.storage.folders import FILE

SCHEMA_VERSION = 3
# Schema 2 has no column `bar`, since all candidates were evaluated all the way, and timings without attainable time.
READABLE = (2, SCHEMA_VERSION)
APPLICATION_ID = 0x65766F31  # "evo1": identifies a run among SQLite files.
_BUSY_S = 10.0  # readers hold no locks that a writer waits for in WAL mode, but a checkpoint may

TRIALS_VIEW = """VIEW trials AS
    SELECT trial, operator, parents, island, note, verdict, stage, speedup, ci_low, ci_high, estimated,
           evaluations.at - proposals.at AS seconds, finished
    FROM proposals LEFT JOIN evaluations USING (trial);
"""
SCHEMA = f"""
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE sources (
    candidate TEXT PRIMARY KEY,
    text TEXT NOT NULL
);
CREATE TABLE proposals (
    trial INTEGER PRIMARY KEY,
    candidate TEXT NOT NULL UNIQUE REFERENCES sources (candidate),
    operator TEXT NOT NULL,
    parents TEXT NOT NULL,
    island INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    note TEXT NOT NULL,
    cost TEXT NOT NULL,
    at REAL NOT NULL,
    bar TEXT
);
CREATE TABLE evaluations (
    finished INTEGER PRIMARY KEY,
    trial INTEGER NOT NULL UNIQUE REFERENCES proposals (trial),
    verdict TEXT NOT NULL,
    stage TEXT NOT NULL,
    plan_hash TEXT NOT NULL,
    speedup REAL,
    ci_low REAL,
    ci_high REAL,
    estimated INTEGER,
    per_case TEXT,
    evaluation TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE screens (
    candidate TEXT PRIMARY KEY,
    speedup REAL,
    at REAL NOT NULL
);
CREATE TABLE llm_calls (
    call INTEGER PRIMARY KEY,
    prompt_hash TEXT NOT NULL,
    model TEXT NOT NULL,
    operator TEXT NOT NULL,
    parents TEXT NOT NULL,
    island INTEGER NOT NULL,
    told INTEGER NOT NULL,
    proposed INTEGER NOT NULL DEFAULT 0,
    trial INTEGER UNIQUE REFERENCES proposals (trial),
    request TEXT NOT NULL,
    answer TEXT,
    reasoning TEXT,
    spans TEXT,
    answered_source TEXT,
    finish TEXT,
    tokens_in INTEGER,
    tokens_out INTEGER,
    usd REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    unsettled INTEGER NOT NULL DEFAULT 0,
    seconds REAL,
    error TEXT,
    asked_at REAL NOT NULL,
    answered_at REAL
);
CREATE TABLE profiles (
    candidate TEXT NOT NULL REFERENCES sources (candidate),
    tier TEXT NOT NULL,
    profile TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (candidate, tier)
);
CREATE TABLE events (
    event INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE {TRIALS_VIEW}"""

# For tasks with `eager = True`, earlier versions called the Python of candidates and verified no recorded plan.  Such a
# result is read as what its candidate is now: unsupported, and without times.
_UNRECORDED = "an earlier version called its Python and verified no recorded plan, so its times do not count"
_SEED_UNRECORDED = """SELECT EXISTS(SELECT 1 FROM evaluations WHERE trial = 0 AND instr(evaluation, '"eager": true'))"""
_WITHOUT_UNRECORDED = f"""
CREATE TEMP VIEW evaluations AS
    SELECT finished, trial, 'unsupported' AS verdict, 'record' AS stage, plan_hash, NULL AS speedup, NULL AS ci_low,
           NULL AS ci_high, NULL AS estimated, NULL AS per_case,
           json_patch(evaluation, '{{"verdict": "unsupported", "stage": "record", "message": "{_UNRECORDED}",
                                     "timings": [], "eager": null}}') AS evaluation, at
    FROM main.evaluations WHERE verdict = 'ok'
    UNION ALL SELECT * FROM main.evaluations WHERE verdict != 'ok';
CREATE TEMP {TRIALS_VIEW}"""

# Columns that runs of earlier versions lack, by table: what an answer held before its parameters were tuned; the bar of
# a first look.
_LATER = {"llm_calls": "answered_source", "proposals": "bar"}
_HAS = "SELECT EXISTS(SELECT 1 FROM pragma_table_info('{}') WHERE name = '{}')"
_WITHOUT = "CREATE TEMP VIEW {0} AS SELECT *, NULL AS {1} FROM main.{0}"


def _open(path: Path, *, uri: str = "", check_same_thread: bool = True) -> sqlite3.Connection:
    db = sqlite3.connect(
        uri or path, uri=bool(uri), timeout=_BUSY_S, isolation_level=None, check_same_thread=check_same_thread
    )
    db.create_function("surely_faster", 4, surely_faster, deterministic=True)
    return db


def create_database(folder: Path, meta: Mapping[str, str]) -> None:
    """Write the tables and the rows of `meta`.

    The file gets its name when it is whole, so a run exists entirely or not at all.  Raises StoreError.
    """
    new = folder / (FILE + ".new")
    new.unlink(missing_ok=True)
    try:
        db = _open(new)
        db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        # Now, not by the first writer: killed while changing the mode, it leaves a journal that no reader can undo.
        db.execute("PRAGMA journal_mode = WAL")
        db.close()
    except sqlite3.Error as error:
        raise StoreError(f"expected to write {new}, got: {error}; check the disk and its permissions") from error
    os.replace(new, folder / FILE)


def connect_to_read(folder: Path) -> sqlite3.Connection:
    path = folder / FILE
    if not path.is_file():
        raise StoreError(f"expected a run in {folder}, found no {FILE}: {folders.what_instead(folder)}")
    if path.stat().st_size == 0:  # for SQLite a database without tables
        raise StoreError(f"expected a run in {path}, got an empty file; restore it from a copy, or delete it")
    # A finished run in a folder without write permission (an archive, another user's) has no place for SQLite's index
    # of the write-ahead log, and does not need it.
    still = not os.access(folder, os.W_OK) and not (folder / f"{FILE}-wal").exists()
    db = _open(path, uri=f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if still else ''}")
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        db.close()
        raise damaged(path, error) from error
    if application != APPLICATION_ID or version not in READABLE:
        db.close()
        found = f"schema {version}" if application == APPLICATION_ID else "another program's database"
        raise StoreError(
            f"expected a run of schema {SCHEMA_VERSION} in {path}, got {found}; read it with the version that wrote it"
        )
    try:
        for place in _LATER.items():
            if not db.execute(_HAS.format(*place)).fetchone()[0]:
                db.execute(_WITHOUT.format(*place))
    except sqlite3.DatabaseError as error:
        db.close()
        raise damaged(path, error) from error
    return db


def leave_out_unrecorded(db: sqlite3.Connection, folder: Path) -> None:
    """If the seed was evaluated without a recorded plan, so was the whole run: no result of it is read as ok."""
    try:
        if db.execute(_SEED_UNRECORDED).fetchone()[0]:
            db.executescript(_WITHOUT_UNRECORDED)
    except sqlite3.DatabaseError as error:
        raise damaged(folder / FILE, error) from error


def connect_to_write(folder: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Returns a connection that writes to the run in `folder`; the caller must hold the run's lock."""
    db = _open(folder / FILE, check_same_thread=check_same_thread)
    db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode NORMAL survives a killed process; a power cut may cost the last transactions, never the file.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:  # a run of an earlier version goes on
        _add_later_columns(db)
    return db


def _add_later_columns(db: sqlite3.Connection) -> None:
    """Makes the tables of an earlier schema those of this one."""
    db.execute("BEGIN IMMEDIATE")
    for table, column in _LATER.items():
        if not db.execute(_HAS.format(table, column)).fetchone()[0]:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


@contextmanager
def transaction(db: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """Writes all that is written inside, or nothing.  Raises StoreError if the run in `folder` cannot be written."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        _rollback(db)
        raise StoreError(
            f"expected to write to {folder / FILE}, got: {error}; free disk space or check the permissions, "
            f"then go on by `evo resume {quoted(folder)}`"
        ) from error
    except BaseException as error:
        _rollback(db)
        if is_damage(error):
            raise damaged(folder / FILE, error) from error
        raise


def _rollback(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")


def is_damage(error: BaseException | None) -> bool:
    """Returns whether the file and not a statement is at fault: SQLite's own errors have no class of their own."""
    return type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError)


_FIXES = {"locked": "wait for who writes to it", "full": "free space on its disk", "readonly": "check its permissions"}


def damaged(path: Path, error: BaseException | None) -> StoreError:
    fix = next((fix for word, fix in _FIXES.items() if word in str(error)), "restore it from a copy")
    return StoreError(f"expected a run in {path}, got: {error}; {fix}")


# What making a record of a damaged row may raise.
UNDECODABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@contextmanager
def decoding(folder: Path, table: str, row: str = "") -> Iterator[None]:
    """Wraps making a record from a row.  Raises StoreError if evo cannot have written the row of the run in `folder`.

    `row`: which one, e.g. "trial 7".
    """
    try:
        yield
    except UNDECODABLE as error:
        where = f"table {table}{', ' * bool(row)}{row}"
        raise StoreError(
            f"expected what evo wrote in {folder / FILE}, got in {where}: {type(error).__name__}: {error}; "
            f"restore it from a copy"
        ) from error


def parse_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"expected a JSON object, got {text[:40]}")
    return found


def parse_integers(text: str) -> tuple[int, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise TypeError(f"expected a list of integers, got {text[:40]}")
    return tuple(found)


def check_references(db: sqlite3.Connection, folder: Path) -> None:
    """Raises StoreError if a row lacks the one it refers to: a proposal its source, an evaluation its proposal."""
    try:
        lost = db.execute("PRAGMA foreign_key_check").fetchone()
    except sqlite3.DatabaseError as error:
        raise damaged(folder / FILE, error) from error
    if lost is not None:
        table, number, parent, _ = lost
        row = f"{'trial' if table == 'proposals' else 'row'} {number}"
        with decoding(folder, table, row):
            raise KeyError(f"its row of {parent} is missing")
