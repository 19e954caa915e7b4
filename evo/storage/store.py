"""Writes the facts of a run to one SQLite file.  `docs/store.md` describes the tables.

Facts come before state: a proposal is stored before it is evaluated, an evaluation before the archive sees it.  Each
fact is one transaction, so a process killed at any moment loses at most what was being evaluated.  One process writes;
any number may read (`evo.storage.queries`), while it writes too.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Self

from evo.core.errors import StoreError
from evo.core.plugins import check_recorded
from evo.core.records import (
    Profile,
    Proposal,
    SeedEstimate,
    Trial,
    bar_to_json,
    evaluation_to_json,
    profile_to_json,
    seed_estimate_to_json,
)
from evo.core.settings import RunConfig
from evo.core.text import quoted, storable
from evo.storage import folders
from evo.storage.folders import FILE
from evo.storage.queries import RunInfo, RunReader, read_info
from evo.storage.schema import connect_to_write, create_database, transaction

LOCK = "run.lock"

NEW_VERSIONS = "versions"  # the event of a run that goes on with other ones
# The places of the parts of an answer: (first character, one past the last) by name.
Spans = Mapping[str, tuple[int, int]]


class Store(RunReader):
    """The one writer of a run; made by `create`, `open` or `resume`, not directly."""

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
            create_database(folder, _meta(info))
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
    def open(cls, folder: Path, *, task_hash: str, versions: Mapping[str, str], new_versions: bool = False) -> Store:
        """Does what `resume` does, but changes nothing before `goes_on` is called: another check may still refuse.

        new_versions: other versions than the run was started with are accepted.
        """
        with RunReader(folder) as reader:
            _check_same(reader.info, folder, task_hash, reader.info.versions if new_versions else versions)
        lock = _take_lock(folder)
        try:
            store = cls(folder, lock)
        except BaseException:
            lock.close()
            raise
        return store

    def proposed(
        self, proposal: Proposal, *, call: int | None = None, spans: Spans | None = None, answered: str | None = None
    ) -> None:
        """Stores a proposal and its source; to be called before anything is evaluated.

        `call`: the one whose answer it was made from; `spans`: the places of plan and code in that answer; `answered`:
        the source in that answer, if the proposal has another one.
        """
        with self._transaction():
            self._insert_proposal(proposal, call, spans, answered)

    def finished(self, trial: Trial) -> None:
        """Stores the evaluation of a proposal; to be called before any state changes."""
        with self._transaction():
            self._insert_evaluation(trial)

    def proposed_and_finished(self, trial: Trial, *, call: int) -> None:
        """Stores an answer that has nothing to evaluate, as a finished trial."""
        with self._transaction():
            self._insert_proposal(trial.proposal, call)
            self._insert_evaluation(trial)

    def _insert_proposal(
        self, p: Proposal, call: int | None, spans: Spans | None = None, answered: str | None = None
    ) -> None:
        self._db.execute("INSERT INTO sources VALUES (?, ?)", (p.candidate.id, p.candidate.source))
        self._db.execute(
            "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (p.index, p.candidate.id, p.operator, json.dumps(p.parents), p.island, p.seed, storable(p.note),
             json.dumps(dict(p.cost)), time.time(), bar_to_json(p.bar)),
        )  # fmt: skip
        if call is not None:
            text = None if spans is None else json.dumps(dict(spans))
            self._db.execute(
                "UPDATE llm_calls SET trial = ?, spans = ?, answered_source = ? WHERE call = ?",
                (p.index, text, answered, call),
            )

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

    def set_seed_estimate(self, estimate: SeedEstimate) -> None:
        """Stores what is known of the seed kernel before anything is evaluated; to be called once."""
        with self._transaction():
            self._db.execute("INSERT INTO meta VALUES ('seed_estimate', ?)", (seed_estimate_to_json(estimate),))

    def event(self, kind: str, text: str) -> None:
        with self._transaction():
            self._insert_event(kind, text)

    def _insert_event(self, kind: str, text: str) -> None:
        self._db.execute("INSERT INTO events VALUES (NULL, ?, ?, ?)", (kind, storable(text), time.time()))

    def set_config(self, config: RunConfig) -> None:
        """Replaces the stored configuration (a run that is over may get another budget)."""
        with self._transaction():
            self._update_config(config)
        self.info = read_info(self._db, self.folder)

    def _update_config(self, config: RunConfig) -> None:
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'config'", (config.to_json(),))

    def goes_on(self, config: RunConfig, versions: Mapping[str, str]) -> None:
        """Stores that the run continues, and with which configuration and versions; an event keeps the earlier ones."""
        with self._transaction():
            self._update_config(config)
            if versions != self.info.versions:
                self._insert_event(NEW_VERSIONS, f"before: {_in_words(self.info.versions)}")
                self._update("versions", versions)
            self._insert_event("resumed", _in_words(versions))
        self.info = read_info(self._db, self.folder)

    def set_evaluator(self, versions: Mapping[str, str], environment: Mapping[str, Any]) -> None:
        """Completes a run that was started without an evaluator, before the first evaluation."""
        with self._transaction():
            self._update("versions", versions)
            self._update("environment", environment)
        self.info = read_info(self._db, self.folder)

    def _update(self, key: str, value: Mapping[str, Any]) -> None:
        self._db.execute("UPDATE meta SET value = ? WHERE key = ?", (json.dumps(dict(value), default=str), key))

    def close(self) -> None:
        super().close()
        self._lock.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db, self.folder)


class ProfileLog:
    """Writes profiles to the run in `folder`, which this process writes.  A context manager, for one thread.

    The worker that evaluates writes them, beside the search.
    """

    def __init__(self, folder: Path) -> None:
        self._db = connect_to_write(folder)

    def has(self, candidate: str) -> bool:
        """Returns whether a profile of the candidate (its id) is stored."""
        query = "SELECT 1 FROM profiles WHERE candidate = ?"
        return self._db.execute(query, (candidate,)).fetchone() is not None

    def add(self, candidate: str, profile: Profile) -> None:
        row = (candidate, profile.tier, profile_to_json(profile), time.time())
        self._db.execute("INSERT INTO profiles VALUES (?, ?, ?, ?)", row)

    def failed(self, candidate: str, error: str) -> None:
        """Stores the reason for which a candidate has no profile."""
        text = f"candidate {candidate}: {error}"
        self._db.execute("INSERT INTO events VALUES (NULL, 'unprofiled', ?, ?)", (text, time.time()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()


def _meta(info: RunInfo) -> dict[str, str]:
    """`info` as the rows of the table meta."""
    return {
        "config": info.config.to_json(),
        "task_hash": info.task_hash,
        "versions": json.dumps(dict(info.versions)),
        "environment": json.dumps(dict(info.environment), default=str),
    }


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
            f"compared with old ones; use the same versions, start a new run, or go on with the new ones by "
            f"--new-versions of evo resume, evo ablate or evo bench"
        )
    check_recorded(info.config.plugins, f"cannot go on with {folder}")


def _in_words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
