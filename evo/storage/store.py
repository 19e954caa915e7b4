"""Stores a run in one SQLite file.  `docs/store.md` describes the tables.

Facts come before state: a proposal is stored before it is evaluated, an evaluation before the archive sees it.  Each
fact is one transaction, so a process killed at any moment loses at most what was being evaluated.  One process writes;
any number may read, while it writes too.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from evo.core.errors import ConfigError, StoreError
from evo.core.records import (
    TIERS,
    Candidate,
    Fitness,
    Profile,
    Proposal,
    Trial,
    Verdict,
    evaluation_from_json,
    evaluation_to_json,
    profile_from_json,
)
from evo.core.settings import RunConfig
from evo.core.text import quoted
from evo.storage import folders

FILE = folders.FILE
LOCK = "run.lock"
SCHEMA_VERSION = 2
APPLICATION_ID = 0x65766F31  # "evo1": identifies a run among SQLite files.
_BUSY_S = 10.0  # readers hold no locks that a writer waits for in WAL mode, but a checkpoint may

_SCHEMA = """
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
    at REAL NOT NULL
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
CREATE VIEW trials AS
    SELECT trial, operator, parents, island, note, verdict, stage, speedup, ci_low, ci_high, estimated,
           evaluations.at - proposals.at AS seconds, finished
    FROM proposals LEFT JOIN evaluations USING (trial);
"""

_TRIAL = """
    SELECT p.trial, p.candidate, s.text, p.operator, p.parents, p.island, p.seed, p.note, p.cost,
           e.evaluation, e.speedup, e.ci_low, e.ci_high, e.per_case, e.estimated
    FROM proposals p JOIN sources s USING (candidate) {join} JOIN evaluations e USING (trial)
"""


# The places of the parts of an answer: (first character, one past the last) by name.
Spans = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class RunInfo:
    """The settings with which a run was started.  `environment` is empty until an evaluator has worked on it."""

    config: RunConfig
    task_hash: str
    versions: Mapping[str, str]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class OperatorCredit:
    """The record of an operator: trials finished, of those ok, of those faster than every parent, its best speedup.

    `tokens` and `usd` are what its answers cost; None if no model was asked, or if they were not counted.
    """

    name: str
    trials: int
    ok: int
    improved: int
    best: float | None
    tokens: int | None
    usd: float | None


@dataclass(frozen=True)
class ModelUse:
    """The calls of a language model and their cost.  Tokens and dollars: None if they were not counted."""

    name: str
    calls: int
    answers: int
    failed: int
    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    seconds: float | None  # mean time to an answer


@dataclass(frozen=True)
class HintCredit:
    """The record of a hint: finished trials that followed it, of those ok, of those faster than every parent, and their
    mean gain: the geometric mean of speedup over that of the best parent, over those that are ok.
    """

    name: str
    trials: int
    ok: int
    improved: int
    gain: float | None


class RunReader:
    """Reads a run, also while another process writes it.  Raises StoreError without a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db = _connect_to_read(folder)
        try:
            self.info = _read_info(self._db, folder)
            _check_references(self._db, folder)
        except BaseException:
            self._db.close()
            raise

    def trials(self, skip: int = 0) -> Iterator[Trial]:
        """Yields finished trials in the order in which they were finished, without the first `skip`."""
        for row in self._db.execute(_TRIAL.format(join="") + "WHERE e.finished > ? ORDER BY e.finished", (skip,)):
            yield _trial(row, self.folder)

    def trial(self, index: int) -> Trial | Proposal:
        """Returns one trial, or its Proposal if it is not finished."""
        row = self._db.execute(_TRIAL.format(join="LEFT") + "WHERE p.trial = ?", (index,)).fetchone()
        if row is None:
            count = self._db.execute("SELECT COUNT(*) FROM proposals").fetchone()[0]
            if not count:
                raise StoreError(
                    f"expected a trial in {self.folder}, got {index}, but none is stored yet; wait for one"
                )
            raise StoreError(f"expected a trial from 0 to {count - 1} in {self.folder}, got {index}; name one of these")
        return _proposal(row, self.folder) if row[9] is None else _trial(row, self.folder)

    def pending(self) -> list[Proposal]:
        """Returns proposals without an evaluation, in their order."""
        rows = self._db.execute(_TRIAL.format(join="LEFT") + "WHERE e.trial IS NULL ORDER BY p.trial")
        return [_proposal(row, self.folder) for row in rows]

    def best(self) -> Trial | None:
        """Returns the fastest trial; the earlier one of equals."""
        return next(self.ranked(), None)

    def ranked(self) -> Iterator[Trial]:
        """Trials with a speedup, the fastest first; the earlier one of equals."""
        query = _TRIAL.format(join="") + "WHERE e.speedup IS NOT NULL ORDER BY e.speedup DESC, e.finished"
        for row in self._db.execute(query):
            yield _trial(row, self.folder)

    def verdicts(self) -> dict[str, int]:
        """Finished trials by verdict, most frequent first."""
        return dict(self._db.execute("SELECT verdict, COUNT(*) FROM evaluations GROUP BY 1 ORDER BY 2 DESC, 1"))

    def operators(self) -> list[OperatorCredit]:
        """Credit of each operator, most used first."""
        return [OperatorCredit(*row) for row in self._db.execute(_CREDIT)]

    def lineage(self, index: int) -> list[Trial]:
        """The trial `index`, its first parent, that one's first parent, and so on to the seed."""
        line: list[Trial] = []
        following: int | None = index
        while following is not None:
            trial = self.trial(following)
            if not isinstance(trial, Trial):
                break
            line.append(trial)
            following = trial.proposal.parents[0] if trial.proposal.parents else None
        return line

    def screened(self, candidates: Sequence[str]) -> dict[str, float | None]:
        """Returns the stored estimates of speedups, by candidate id; None if the candidate does not compile."""
        marks = ",".join("?" * len(candidates))
        return dict(
            self._db.execute(f"SELECT candidate, speedup FROM screens WHERE candidate IN ({marks})", candidates)
        )

    def screen_count(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM screens").fetchone()[0])

    def models(self) -> list[ModelUse]:
        """Returns the calls and costs of each language model, most asked first."""
        return [ModelUse(*row) for row in self._db.execute(_MODELS)]

    def spent(self) -> int:
        """Returns how many candidates were evaluated, without the seed, which is free."""
        return max(0, sum(self.verdicts().values()) - 1)

    def first_failures(self) -> dict[str, str]:
        """The error of the first call that failed, by model."""
        return dict(self._db.execute(_FIRST_FAILURES))

    def answers(self) -> list[dict[str, Any]]:
        """Returns all answers of language models, in the order of asking: model, prompt_hash, answer, ..., usd."""
        rows = self._db.execute(f"SELECT {', '.join(_ANSWER)} FROM llm_calls WHERE answer IS NOT NULL ORDER BY call")
        return [dict(zip(_ANSWER, row, strict=True)) for row in rows]

    def call_of(self, index: int) -> dict[str, Any] | None:
        """Returns the call whose answer became trial `index`, as a row; None if no model was asked for it."""
        found = self._db.execute("SELECT * FROM llm_calls WHERE trial = ?", (index,))
        row = found.fetchone()
        return None if row is None else dict(zip((column[0] for column in found.description), row, strict=True))

    def profile(self, candidate: str) -> Profile | None:
        """Returns what limits a candidate, from the best stored tier; None if it was not profiled."""
        rows = dict(self._db.execute("SELECT tier, profile FROM profiles WHERE candidate = ?", (candidate,)))
        best = next((rows[tier] for tier in TIERS if tier in rows), None)
        if best is None:
            return None
        with decoding(self.folder, "profiles", f"candidate {candidate}"):
            return profile_from_json(best)

    def profiles(self, trials: Sequence[int]) -> dict[int, Profile]:
        """The profiles of those of `trials` that have one, each beside that of its first parent."""
        found = {}
        for index in trials:
            proposal = self._proposal_of(index)
            profile = self.profile(proposal.candidate.id)
            if profile is not None:
                parents = proposal.parents[:1]
                earlier = self.profile(self._proposal_of(parents[0]).candidate.id) if parents else None
                found[index] = profile.beside(earlier)
        return found

    def _proposal_of(self, index: int) -> Proposal:
        trial = self.trial(index)
        return trial.proposal if isinstance(trial, Trial) else trial

    def hints(self) -> list[HintCredit]:
        """Returns the record of each hint that drafts say they follow, most followed first."""
        by_name: dict[str, list[tuple[str, float | None, float | None]]] = {}
        for name, *outcome in self._db.execute(_HINTS, {"length": len(HINT), "mark": HINT}):
            by_name.setdefault(name, []).append(tuple(outcome))
        return sorted((_hint_credit(*item) for item in by_name.items()), key=lambda h: (-h.trials, h.name))

    def events(self) -> list[tuple[str, str, float]]:
        """(kind, text, seconds since 1970) of all events, in order; `docs/store.md` has the kinds."""
        return list(self._db.execute("SELECT kind, text, at FROM events ORDER BY event"))

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of any SELECT (tables: `docs/store.md`), read one after the other."""
        return self._db.execute(query, parameters)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside, all reads see the run at one moment, whatever the writer does meanwhile."""
        self._db.execute("BEGIN")
        try:
            self._db.execute("SELECT COUNT(*) FROM meta").fetchone()  # the moment is that of the first read
            yield
        finally:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, _UNDECODABLE):  # of rows that a query of one's own read, or a mistake in the program
                self._check_rows()
        finally:
            self.close()
        if _is_damage(error):
            raise _damaged(self.folder / FILE, error) from error

    def check_parents(self) -> None:
        """Raises StoreError if a parent of a trial is missing, for readers of rows, which make no records."""
        for trial, parent in self._db.execute(_LOST_PARENTS):
            with decoding(self.folder, "proposals", f"trial {trial}"):
                raise KeyError(f"its parent {parent} is missing")

    def _check_rows(self) -> None:
        """Raises StoreError if a row is not what evo wrote."""
        for _ in self.trials():
            pass
        self.pending()
        for (candidate,) in self._db.execute("SELECT DISTINCT candidate FROM profiles"):
            self.profile(candidate)
        for call, request, parents, spans in self._db.execute("SELECT call, request, parents, spans FROM llm_calls"):
            with decoding(self.folder, "llm_calls", f"call {call}"):
                _integers(parents), _object(spans or "{}")
                [(m["role"], m["text"]) for m in _object(request)["messages"]]


class Store(RunReader):
    """The one writer of a run; made by `create` or `resume`, not directly."""

    def __init__(self, folder: Path, lock: IO[str]) -> None:
        self._lock = lock
        super().__init__(folder)
        self._db.close()
        self._db = connect_to_write(folder)

    @classmethod
    def create(cls, folder: Path, info: RunInfo) -> Store:
        """Returns a new run in `folder`, which is made if missing.  An existing run is never overwritten."""
        check_vacant(folder)  # before the lock is left in it
        _make_folder(folder)
        lock = _take_lock(folder)
        try:
            check_vacant(folder)
            _write_new(folder, info)
            store = cls(folder, lock)
        except BaseException:
            lock.close()
            raise
        store.event("started", _in_words(info.versions))
        return store

    @classmethod
    def resume(cls, folder: Path, *, task_hash: str, versions: Mapping[str, str]) -> Store:
        """Returns the run in `folder` to continue it.  Raises StoreError if new trials would not be comparable."""
        store = cls.open(folder, task_hash=task_hash, versions=versions)
        store.goes_on(store.info.config, versions)
        return store

    @classmethod
    def open(cls, folder: Path, *, task_hash: str, versions: Mapping[str, str]) -> Store:
        """Does what `resume` does, but changes nothing before `goes_on` is called: another check may still refuse."""
        with RunReader(folder) as reader:
            _check_same(reader.info, folder, task_hash, versions)
        lock = _take_lock(folder)
        try:
            store = cls(folder, lock)
        except BaseException:
            lock.close()
            raise
        return store

    def proposed(self, proposal: Proposal, *, call: int | None = None, spans: Spans | None = None) -> None:
        """Stores a proposal and its source; to be called before anything is evaluated.

        `call`: the one whose answer it was made from; `spans`: the places of plan and code in that answer.
        """
        with self._transaction():
            self._insert_proposal(proposal, call, spans)

    def finished(self, trial: Trial) -> None:
        """Stores the evaluation of a proposal; to be called before any state changes."""
        with self._transaction():
            self._insert_evaluation(trial)

    def proposed_and_finished(self, trial: Trial, *, call: int) -> None:
        """Stores an answer that has nothing to evaluate, as a finished trial."""
        with self._transaction():
            self._insert_proposal(trial.proposal, call, None)
            self._insert_evaluation(trial)

    def _insert_proposal(self, p: Proposal, call: int | None, spans: Spans | None) -> None:
        self._db.execute("INSERT INTO sources VALUES (?, ?)", (p.candidate.id, p.candidate.source))
        self._db.execute(
            "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (p.index, p.candidate.id, p.operator, json.dumps(p.parents), p.island, p.seed, plain_text(p.note),
             json.dumps(dict(p.cost)), time.time()),
        )  # fmt: skip
        if call is not None:
            text = None if spans is None else json.dumps(dict(spans))
            self._db.execute("UPDATE llm_calls SET trial = ?, spans = ? WHERE call = ?", (p.index, text, call))

    def _insert_evaluation(self, trial: Trial) -> None:
        e, f = trial.evaluation, trial.fitness
        fitness = (f.speedup, *f.ci95, f.estimated, json.dumps(dict(f.per_case))) if f else (None,) * 5
        self._db.execute(
            "INSERT INTO evaluations VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (trial.index, e.verdict, e.stage, e.plan_hash, *fitness, evaluation_to_json(e), time.time()),
        )

    def screens(self, speedups: Mapping[str, float | None]) -> None:
        """Stores estimates by candidate id, so that none is paid for twice."""
        with self._transaction():
            rows = [(candidate, speedup, time.time()) for candidate, speedup in speedups.items()]
            self._db.executemany("INSERT OR IGNORE INTO screens VALUES (?, ?, ?)", rows)

    def event(self, kind: str, text: str) -> None:
        with self._transaction():
            self._insert_event(kind, text)

    def _insert_event(self, kind: str, text: str) -> None:
        self._db.execute("INSERT INTO events VALUES (NULL, ?, ?, ?)", (kind, plain_text(text), time.time()))

    def set_config(self, config: RunConfig) -> None:
        """Replaces the stored configuration (a run that is over may get another budget)."""
        with self._transaction():
            self._update_config(config)
        self.info = _read_info(self._db, self.folder)

    def _update_config(self, config: RunConfig) -> None:
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'config'", (config.to_json(),))

    def goes_on(self, config: RunConfig, versions: Mapping[str, str]) -> None:
        """Stores that the run continues, and with which configuration."""
        with self._transaction():
            self._update_config(config)
            self._insert_event("resumed", _in_words(versions))
        self.info = _read_info(self._db, self.folder)

    def set_evaluator(self, versions: Mapping[str, str], environment: Mapping[str, Any]) -> None:
        """Completes a run that was started without an evaluator, before the first evaluation."""
        with self._transaction():
            for key, value in (("versions", versions), ("environment", environment)):
                text = json.dumps(dict(value), default=str)
                self._db.execute("UPDATE meta SET value = ? WHERE key = ?", (text, key))
        self.info = _read_info(self._db, self.folder)

    def close(self) -> None:
        super().close()
        self._lock.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db, self.folder)


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
        if _is_damage(error):
            raise _damaged(folder / FILE, error) from error
        raise


def _rollback(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")


def connect_to_write(folder: Path, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Returns a connection that writes to the run in `folder`; the caller must hold the run's lock."""
    db = _open(folder / FILE, check_same_thread=check_same_thread)
    db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode NORMAL survives a killed process; a power cut may cost the last transactions, never the file.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    return db


# Improved: faster than every parent.  `json_each` opens the list of parents.
_CREDIT = """
    SELECT operator, COUNT(*), SUM(verdict = 'ok'), SUM(improved), MAX(speedup), SUM(tokens),
           CASE WHEN COUNT(usd) = COUNT(tokens) THEN SUM(usd) END FROM (
        SELECT p.operator, e.verdict, e.speedup, p.trial,
               JSON_EXTRACT(p.cost, '$.tokens_in') + JSON_EXTRACT(p.cost, '$.tokens_out') AS tokens,
               JSON_EXTRACT(p.cost, '$.usd') AS usd,
               COALESCE(e.speedup > (SELECT MAX(pe.speedup) FROM json_each(p.parents) j
                                     JOIN evaluations pe ON pe.trial = j.value), 0) AS improved
        FROM proposals p JOIN evaluations e USING (trial)
    ) GROUP BY operator ORDER BY COUNT(*) DESC, operator
"""

# A draft that followed a hint has the cost "hint:ID".
HINT = "hint:"
_HINTS = """
    SELECT SUBSTR(c.key, 1 + :length), e.verdict, e.speedup,
           (SELECT MAX(pe.speedup) FROM json_each(p.parents) j JOIN evaluations pe ON pe.trial = j.value)
    FROM proposals p JOIN evaluations e USING (trial), json_each(p.cost) c
    WHERE SUBSTR(c.key, 1, :length) = :mark ORDER BY e.finished
"""


_ANSWER = ("model", "prompt_hash", "answer", "reasoning", "finish", "tokens_in", "tokens_out", "usd")
# A sum with an unknown part is unknown: SQLite's SUM would leave that part out.
_MODELS = """
    SELECT model, COUNT(*), COUNT(answer), COUNT(error), SUM(tokens_in), SUM(tokens_out),
           CASE WHEN COUNT(usd) = COUNT(answer) THEN SUM(usd) END, AVG(seconds)
    FROM llm_calls GROUP BY model ORDER BY COUNT(*) DESC, model
"""
_LOST_PARENTS = """
    SELECT p.trial, j.value FROM proposals p, json_each(p.parents) j
    WHERE j.value NOT IN (SELECT trial FROM proposals) ORDER BY p.trial
"""
_FIRST_FAILURES = """
    SELECT model, error FROM llm_calls
    WHERE call IN (SELECT MIN(call) FROM llm_calls WHERE error IS NOT NULL GROUP BY model) ORDER BY model
"""


# --- rows ------------------------------------------------------------------------------------------------------------


def _hint_credit(name: str, outcomes: Sequence[tuple[str, float | None, float | None]]) -> HintCredit:
    """outcomes: (verdict, speedup, speedup of the best parent) of each trial."""
    gains = [speedup / parent for _, speedup, parent in outcomes if speedup is not None and parent is not None]
    return HintCredit(
        name=name,
        trials=len(outcomes),
        ok=sum(verdict == Verdict.OK for verdict, _, _ in outcomes),
        improved=sum(gain > 1 for gain in gains),
        gain=math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None,
    )


def _proposal(row: Sequence[Any], folder: Path) -> Proposal:
    index, candidate, text, operator, parents, island, seed, note, cost = row[:9]
    with decoding(folder, "proposals", f"trial {index}"):
        return Proposal(
            index=index, candidate=Candidate(text, candidate), operator=operator, parents=_integers(parents),
            island=island, seed=seed, note=note, cost=_object(cost),
        )  # fmt: skip


def _trial(row: Sequence[Any], folder: Path) -> Trial:
    evaluation, speedup, low, high, per_case, estimated = row[9:]
    proposal, fitness = _proposal(row, folder), None
    with decoding(folder, "evaluations", f"trial {proposal.index}"):
        found = evaluation_from_json(evaluation)
        if speedup is not None:
            ci95 = float(low), float(high)
            fitness = Fitness(float(speedup), ci95, _object(per_case), bool(estimated), found.eager)
        return Trial(proposal, found, fitness)


# What making a record of a damaged row may raise.
_UNDECODABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@contextmanager
def decoding(folder: Path, table: str, row: str = "") -> Iterator[None]:
    """Wraps making a record from a row.  Raises StoreError if evo cannot have written the row of the run in `folder`.

    `row`: which one, e.g. "trial 7".
    """
    try:
        yield
    except _UNDECODABLE as error:
        where = f"table {table}{', ' * bool(row)}{row}"
        raise StoreError(
            f"expected what evo wrote in {folder / FILE}, got in {where}: {type(error).__name__}: {error}; "
            f"restore it from a copy"
        ) from error


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"expected a JSON object, got {text[:40]}")
    return found


def _integers(text: str) -> tuple[int, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise TypeError(f"expected a list of integers, got {text[:40]}")
    return tuple(found)


def plain_text(text: str) -> str:
    """`text` with what UTF-8 cannot hold (lone surrogates in a candidate's messages) made visible."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --- files -----------------------------------------------------------------------------------------------------------


def check_vacant(folder: Path) -> None:
    """Raises StoreError if `folder` holds a run already, or something else that a run would damage."""
    if (folder / FILE).exists():
        raise StoreError(
            f"expected a folder without a run, but {folder} holds one; "
            f"go on with it by `evo resume {quoted(folder)}`, or choose another --run-dir"
        )
    if owner := folders.owner(folder):
        raise StoreError(f"expected a folder for a run, but {folder} is {owner}; choose another --run-dir")


def check_makeable(folder: Path) -> None:
    """Raises StoreError if `folder` can be neither made nor written; makes nothing.

    A run folder is made when the seed kernel was evaluated, which may take minutes: this is said before.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    problem = "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"
    if not there.is_dir():
        problem = f"{there} is a file"
    if problem:
        raise StoreError(f"expected a folder that can be made at {folder}, got: {problem}; choose another --run-dir")


def is_written(folder: Path) -> bool:
    """Returns whether a process on this machine is running the run in `folder`.

    A shared lock is tried, which harms no writer that is there; it is given back at once.
    """
    try:
        with open(folder / LOCK, encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"expected a folder that can be made at {folder}, got: {error}; choose another --run-dir"
        ) from error


def _take_lock(folder: Path) -> IO[str]:
    """Takes the writer's lock, which the kernel releases when the process ends, however it ends."""
    try:
        lock = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - lives as long as the store
    except OSError as error:
        raise StoreError(f"expected a folder that can be written at {folder}, got: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StoreError(
            f"expected a run that no process writes, but process {holder} is running {folder}; wait for it or stop it "
            f"(reading is possible meanwhile: `evo show {quoted(folder)}`)"
        ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _open(path: Path, *, uri: str = "", check_same_thread: bool = True) -> sqlite3.Connection:
    return sqlite3.connect(
        uri or path, uri=bool(uri), timeout=_BUSY_S, isolation_level=None, check_same_thread=check_same_thread
    )


def _write_new(folder: Path, info: RunInfo) -> None:
    """Writes the tables and `info`; the file gets its name when it is whole, so a run exists entirely or not at all."""
    new = folder / (FILE + ".new")
    new.unlink(missing_ok=True)
    meta = {
        "config": info.config.to_json(),
        "task_hash": info.task_hash,
        "versions": json.dumps(dict(info.versions)),
        "environment": json.dumps(dict(info.environment), default=str),
    }
    try:
        db = _open(new)
        db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        # Now, not by the first writer: killed while changing the mode, it leaves a journal that no reader can undo.
        db.execute("PRAGMA journal_mode = WAL")
        db.close()
    except sqlite3.Error as error:
        raise StoreError(f"expected to write {new}, got: {error}; check the disk and its permissions") from error
    os.replace(new, folder / FILE)


def _connect_to_read(folder: Path) -> sqlite3.Connection:
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
        raise _damaged(path, error) from error
    if application != APPLICATION_ID or version != SCHEMA_VERSION:
        db.close()
        found = f"schema {version}" if application == APPLICATION_ID else "another program's database"
        raise StoreError(
            f"expected a run of schema {SCHEMA_VERSION} in {path}, got {found}; read it with the version that wrote it"
        )
    return db


def _is_damage(error: BaseException | None) -> bool:
    """Returns whether the file and not a statement is at fault: SQLite's own errors have no class of their own."""
    return type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError)


_FIXES = {"locked": "wait for who writes to it", "full": "free space on its disk", "readonly": "check its permissions"}


def _damaged(path: Path, error: BaseException | None) -> StoreError:
    fix = next((fix for word, fix in _FIXES.items() if word in str(error)), "restore it from a copy")
    return StoreError(f"expected a run in {path}, got: {error}; {fix}")


def _read_info(db: sqlite3.Connection, folder: Path) -> RunInfo:
    try:
        meta = dict(db.execute("SELECT key, value FROM meta"))
    except sqlite3.DatabaseError as error:
        raise _damaged(folder / FILE, error) from error
    with decoding(folder, "meta"):
        task_hash, settings = meta["task_hash"], meta["config"]
        versions, environment, _ = _object(meta["versions"]), _object(meta["environment"]), _object(settings)
    try:
        config = RunConfig.from_json(settings)
    except (*_UNDECODABLE, ConfigError) as error:
        raise StoreError(
            f"expected settings known here in {folder / FILE}, got: {error}; read it with the version that "
            f"wrote it ({versions.get('evo', 'unknown')})"
        ) from error
    return RunInfo(config=config, task_hash=task_hash, versions=versions, environment=environment)


def _check_references(db: sqlite3.Connection, folder: Path) -> None:
    """Raises StoreError if a row lacks the one it refers to: a proposal its source, an evaluation its proposal."""
    try:
        lost = db.execute("PRAGMA foreign_key_check").fetchone()
    except sqlite3.DatabaseError as error:
        raise _damaged(folder / FILE, error) from error
    if lost is not None:
        table, number, parent, _ = lost
        row = f"{'trial' if table == 'proposals' else 'row'} {number}"
        with decoding(folder, table, row):
            raise KeyError(f"its row of {parent} is missing")


def _check_same(info: RunInfo, folder: Path, task_hash: str, versions: Mapping[str, str]) -> None:
    if task_hash != info.task_hash:
        raise StoreError(
            f"cannot go on with {folder}: task {info.config.task} has changed since the run started (task.py or "
            f"kernel.py differ), so new trials could not be compared with old ones; restore it, or start a new run"
        )
    names = sorted({*versions, *info.versions})
    changed = [n for n in names if versions.get(n) != info.versions.get(n)]
    if changed:
        then, now = (_in_words({n: v.get(n, "none") for n in changed}) for v in (info.versions, versions))
        raise StoreError(
            f"cannot go on with {folder}: it was started with {then}, here is {now}, so new trials could not be "
            f"compared with old ones; use the same versions, or start a new run"
        )


def _in_words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
