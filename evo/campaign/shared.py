"""Shares evaluations and estimates between the runs of a campaign: what one run paid for, the others look up.

Only for evaluators whose answer is a function of the candidate: estimated times are, measured ones are not (their noise
belongs to the experiment).  A single run keys the inputs of the verification by (candidate, proposal).  Here the
candidate alone is the key, so a run does not depend on which run came first.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.core.records import (
    Candidate,
    Certificate,
    Evaluation,
    Profile,
    Verdict,
    evaluation_from_json,
    evaluation_to_json,
)
from evo.search.profiling import Profiler

FILE = "evaluations.sqlite"
# What the machine's load may have decided, and what depends on the run, is not kept.
_NOT_KEPT = (Verdict.TIMEOUT, Verdict.INFRASTRUCTURE, Verdict.DUPLICATE)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    task TEXT, candidate TEXT, evaluation TEXT NOT NULL, PRIMARY KEY (task, candidate)
);
CREATE TABLE IF NOT EXISTS screens (
    task TEXT, candidate TEXT, speedup REAL, PRIMARY KEY (task, candidate)
);
"""


class SharedEvaluator:
    """An `evo.search.profiling.Profiler` in front of another one; `task_hash` and the candidate's id are the key."""

    def __init__(self, evaluator: Profiler, folder: Path, task_hash: str) -> None:
        self._inner, self._task = evaluator, task_hash
        self._lock = threading.Lock()
        self._db = sqlite3.connect(folder / FILE, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_SCHEMA)

    @property
    def environment(self) -> Mapping[str, Any]:
        return {**self._inner.environment, "evaluations": "shared in the campaign, inputs keyed by the candidate alone"}

    def prepare(self) -> Evaluation:
        return self._inner.prepare()

    def evaluate(self, candidate: Candidate, *, seed: int, known: Mapping[str, str]) -> Evaluation:
        found = self._found(candidate.id)
        if found is not None and known.get(found.plan_hash, candidate.id) == candidate.id:
            return found
        evaluation = self._inner.evaluate(candidate, seed=0, known=known)
        if evaluation.verdict not in _NOT_KEPT:
            with self._lock:
                self._db.execute(
                    "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?)",
                    (self._task, candidate.id, evaluation_to_json(evaluation)),
                )
        return evaluation

    def certify(self, source: str, *, seed: int) -> Certificate:
        return self._inner.certify(source, seed=seed)

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        return [self._screened(source) for source in sources]

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        return self._inner.profile(candidate, evaluation, counters=counters)

    def plan_hash(self, source: str) -> str:
        found = self._found(Candidate(source).id)
        return found.plan_hash if found is not None else self._inner.plan_hash(source)

    def _found(self, candidate: str) -> Evaluation | None:
        row = self._row("SELECT evaluation FROM evaluations WHERE task = ? AND candidate = ?", candidate)
        return None if row is None else evaluation_from_json(row[0])

    def _screened(self, source: str) -> float | None:
        name = Candidate(source).id
        row = self._row("SELECT speedup FROM screens WHERE task = ? AND candidate = ?", name)
        if row is not None:
            known: float | None = row[0]
            return known
        speedup = self._inner.screen([source])[0]
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO screens VALUES (?, ?, ?)", (self._task, name, speedup))
        return speedup

    def _row(self, query: str, candidate: str) -> tuple[Any, ...] | None:
        with self._lock:
            row: tuple[Any, ...] | None = self._db.execute(query, (self._task, candidate)).fetchone()
            return row

    def close(self) -> None:
        with self._lock:
            self._db.close()
        self._inner.close()
