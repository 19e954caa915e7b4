"""The ledger of a campaign: what its runs spent and reserved of the campaign's limits, in one SQLite file.

Several processes may use it at once.  What may cost is reserved before it begins; the real cost replaces the
reservation afterwards.  Stores of runs are the facts: the row of a run can be computed from its store at any time.
"""

from __future__ import annotations

import enum
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evo.core.errors import StoreError
from evo.storage.shared import open_shared

FILE = "ledger.sqlite"
CANDIDATES, TOKENS, USD, GPU_SECONDS = RESOURCES = ("candidates", "tokens", "usd", "gpu_seconds")
POLL_S = 0.2  # between two tries to reserve, while other runs hold reservations

_SCHEMA = """
CREATE TABLE IF NOT EXISTS limits (kind TEXT PRIMARY KEY, most REAL NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    run TEXT, kind TEXT, spent REAL NOT NULL, reserved REAL NOT NULL, PRIMARY KEY (run, kind)
);
"""
_ADD = """
INSERT INTO charges VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (run, kind) DO UPDATE SET spent = spent + excluded.spent, reserved = MAX(0, reserved + excluded.reserved)
"""
_SUMS = "SELECT kind, SUM(spent), SUM(reserved) FROM charges GROUP BY kind"


class Grant(enum.Enum):
    """The answer to a wish to spend.  BUSY: there is room only if reservations of others cost less than reserved."""

    GRANTED = enum.auto()
    BUSY = enum.auto()
    FULL = enum.auto()


class Ledger:
    """The ledger in a campaign's folder.  Several threads may use one object."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        with self._in_words():
            self._db = open_shared(self._path, _SCHEMA)

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Replaces the limits of these kinds; others stay."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO limits VALUES (?, ?)", limits.items())

    def limits(self) -> dict[str, float]:
        """Returns the limits by kind; a kind without one is missing."""
        with self._lock, self._in_words():
            return dict(self._db.execute("SELECT kind, most FROM limits"))

    def spent(self) -> dict[str, float]:
        """Returns what all runs spent, by kind."""
        with self._lock, self._in_words():
            sums = {kind: spent for kind, spent, _ in self._db.execute(_SUMS)}
        return {kind: sums.get(kind, 0.0) for kind in RESOURCES}

    def reserve(self, run: str, amounts: Mapping[str, float]) -> tuple[Grant, str]:
        """Reserves all amounts for `run`, or nothing; returns the answer and the kind that has no room."""
        with self._transaction():
            limits = dict(self._db.execute("SELECT kind, most FROM limits"))
            sums = {kind: (spent, reserved) for kind, spent, reserved in self._db.execute(_SUMS)}
            busy = ""
            for kind, amount in amounts.items():
                spent, reserved = sums.get(kind, (0.0, 0.0))
                most = limits.get(kind)
                if most is None or not amount:
                    continue
                if spent + amount > most:
                    return Grant.FULL, kind
                busy = kind if spent + reserved + amount > most else busy
            if busy:
                return Grant.BUSY, busy
            self._db.executemany(_ADD, [(run, kind, 0.0, amount) for kind, amount in amounts.items()])
        return Grant.GRANTED, ""

    def settle(self, run: str, reserved: Mapping[str, float], spent: Mapping[str, float]) -> None:
        """Replaces a reservation of `run` by what was spent, whatever the limits are."""
        kinds = {*reserved, *spent}
        with self._transaction():
            self._db.executemany(_ADD, [(run, kind, spent.get(kind, 0.0), -reserved.get(kind, 0.0)) for kind in kinds])

    def put(self, run: str, spent: Mapping[str, float], reserved: Mapping[str, float]) -> None:
        """Replaces all that is known of `run`, by what its store says."""
        rows = [(run, kind, spent.get(kind, 0.0), reserved.get(kind, 0.0)) for kind in RESOURCES]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO charges VALUES (?, ?, ?, ?)", rows)

    def retire(self, run: str) -> None:
        """Keeps what a run spent whose folder was deleted, under another name: it was paid for."""
        with self._transaction():
            old = self._db.execute("SELECT COUNT(DISTINCT run) FROM charges WHERE run GLOB ?", (f"{run}#*",))
            name = f"{run}#{old.fetchone()[0] + 1}"
            self._db.execute("UPDATE charges SET run = ?, reserved = 0 WHERE run = ?", (name, run))

    def forfeit(self, run: str) -> None:
        """Counts what a run reserved as spent: nothing says what became of it."""
        with self._transaction():
            self._db.execute("UPDATE charges SET spent = spent + reserved, reserved = 0 WHERE run = ?", (run,))

    def runs(self) -> dict[str, bool]:
        """Returns the known runs; the value says whether one holds reservations."""
        with self._lock, self._in_words():
            return dict(self._db.execute("SELECT run, MAX(reserved) > 0 FROM charges GROUP BY run"))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._in_words():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"expected the ledger of a campaign in {self._path}, got: {error}; free disk space or check its "
                f"permissions; if it is damaged, delete it: it is made again from the runs"
            ) from error


class Account:
    """What one run may spend of the limits of its campaign.

    `full`: the kind of which no more can be had, "" while there is room.  Once it is set, the run has to end.
    """

    def __init__(self, ledger: Ledger, run: str, stop: Callable[[], bool], reclaim: Callable[[], None]) -> None:
        """stop: says whether to wait no longer.  reclaim: gives back what runs reserved that no process executes."""
        self.run = run
        self.full = ""
        self._ledger, self._stop, self._reclaim = ledger, stop, reclaim

    def reserve(self, amounts: Mapping[str, float], *, wait: bool) -> bool:
        """Reserves all amounts or nothing; returns whether it did.

        wait: waits while other runs may give room back.  Who waits must have nothing in flight himself.
        """
        while True:
            grant, kind = self._ledger.reserve(self.run, amounts)
            if grant is Grant.FULL:
                self.full = kind
            if grant is not Grant.BUSY or not wait or self._stop():
                return grant is Grant.GRANTED
            self._reclaim()
            time.sleep(POLL_S)

    def settle(self, reserved: Mapping[str, float], spent: Mapping[str, float]) -> None:
        """Replaces a reservation by what was spent."""
        self._ledger.settle(self.run, reserved, spent)
