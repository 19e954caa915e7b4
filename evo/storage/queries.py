"""What a run says, as records: `RunReader` reads its file, also while another process writes it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from evo.core.errors import ConfigError, StoreError
from evo.core.records import (
    BASELINE_OPERATOR,
    FIRST_OPERATORS,
    TIERS,
    Candidate,
    Fitness,
    Profile,
    Proposal,
    SeedEstimate,
    Trial,
    Verdict,
    bar_from_json,
    evaluation_from_json,
    profile_from_json,
    seed_estimate_from_json,
)
from evo.core.settings import RunConfig
from evo.storage.folders import FILE
from evo.storage.schema import (
    UNDECODABLE,
    check_references,
    connect_to_read,
    damaged,
    decoding,
    is_damage,
    leave_out_unrecorded,
    parse_integers,
    parse_object,
)

_TRIAL = """
    SELECT p.trial, p.candidate, s.text, p.operator, p.parents, p.island, p.seed, p.note, p.cost, p.bar,
           e.evaluation, e.speedup, e.ci_low, e.ci_high, e.per_case, e.estimated
    FROM proposals p JOIN sources s USING (candidate) {join} JOIN evaluations e USING (trial)
"""

_RANKED = "WHERE e.speedup IS NOT NULL AND p.operator != ? ORDER BY e.speedup DESC, e.finished"

# Improved: faster than every parent.  `json_each` opens the list of parents.
_IMPROVED = """COALESCE((
                   SELECT MIN(SURELY_FASTER(e.speedup, e.ci_low, pe.speedup, pe.ci_high))
                   FROM json_each(p.parents) j JOIN evaluations pe ON pe.trial = j.value), 0)"""


def _whole_sum(column: str, counted: str) -> str:
    """A sum that is NULL if a row that `counted` holds for lacks the column: SQLite's SUM would leave that row out."""
    return f"CASE WHEN NOT SUM(({counted}) AND {column} IS NULL) THEN SUM({column}) END"


_ASKS = "INSTR(operator, '@') > 0"  # OperatorRef.asks
_CREDIT = f"""
    SELECT operator, COUNT(*), SUM(verdict = 'ok'), SUM(improved), MAX(speedup), {_whole_sum("tokens", _ASKS)},
           {_whole_sum("usd", _ASKS)} FROM (
        SELECT p.operator, e.verdict, e.speedup, p.trial,
               JSON_EXTRACT(p.cost, '$.tokens_in') + JSON_EXTRACT(p.cost, '$.tokens_out') AS tokens,
               JSON_EXTRACT(p.cost, '$.usd') AS usd,
               {_IMPROVED} AS improved
        FROM proposals p JOIN evaluations e USING (trial)
    ) GROUP BY operator ORDER BY COUNT(*) DESC, operator
"""

# A draft that followed a hint has the cost "hint:ID".
HINT = "hint:"
_HINTS = f"""
    SELECT SUBSTR(c.key, 1 + :length), e.verdict, e.speedup,
           (SELECT MAX(pe.speedup) FROM json_each(p.parents) j JOIN evaluations pe ON pe.trial = j.value), {_IMPROVED}
    FROM proposals p JOIN evaluations e USING (trial), json_each(p.cost) c
    WHERE SUBSTR(c.key, 1, :length) = :mark ORDER BY e.finished
"""


_ANSWER = ("model", "prompt_hash", "answer", "reasoning", "finish", "tokens_in", "tokens_out", "usd")
_ANSWERED, _BILLED = "answer IS NOT NULL", "answer IS NOT NULL OR tokens_in IS NOT NULL"
_MODELS = f"""
    SELECT model, COUNT(*), COUNT(answer), COUNT(error), {_whole_sum("tokens_in", _ANSWERED)},
           {_whole_sum("tokens_out", _ANSWERED)}, {_whole_sum("usd", _BILLED)}, AVG(seconds)
    FROM llm_calls GROUP BY model ORDER BY COUNT(*) DESC, model
"""
_COUNT = """
    SELECT COUNT(*) FROM proposals p LEFT JOIN evaluations e USING (trial)
    WHERE p.operator NOT IN (?, ?) AND (e.trial IS NOT NULL) = ?
"""
_LOST_PARENTS = """
    SELECT p.trial, j.value FROM proposals p, json_each(p.parents) j
    WHERE j.value NOT IN (SELECT trial FROM proposals) ORDER BY p.trial
"""
_FIRST_FAILURES = """
    SELECT model, error FROM llm_calls
    WHERE call IN (SELECT MIN(call) FROM llm_calls WHERE error IS NOT NULL GROUP BY model) ORDER BY model
"""


@dataclass(frozen=True)
class RunInfo:
    """The settings with which a run was started.  `environment` is empty until an evaluator has worked on it."""

    config: RunConfig
    task_hash: str
    versions: Mapping[str, str]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class OperatorCredit:
    """What an operator achieved: trials finished, of those ok, of those faster than every parent (beyond the 95%
    intervals), its best speedup.

    `tokens` and `usd` are what its answers cost; None if no model was asked, or if some were not counted.
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
    """What a language model was asked and what it cost.  Tokens and dollars: None if those of an answer are unknown."""

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
    """Reads a run, also while another process writes it.  Raises StoreError if there is no run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db = connect_to_read(folder)
        try:
            self.info = read_info(self._db, folder)
            check_references(self._db, folder)
            leave_out_unrecorded(self._db, folder)
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
        return _proposal(row, self.folder) if row[10] is None else _trial(row, self.folder)

    def pending(self) -> list[Proposal]:
        """Returns proposals without an evaluation, in their order."""
        rows = self._db.execute(_TRIAL.format(join="LEFT") + "WHERE e.trial IS NULL ORDER BY p.trial")
        return [_proposal(row, self.folder) for row in rows]

    def best(self) -> Trial | None:
        """Returns the fastest kernel; the earlier one of equals.  None if no kernel is right yet."""
        return next(self.ranked(), None)

    def first(self) -> Trial | None:
        """Returns trial 0, with which the others are compared: the seed kernel, or PyTorch.  None until it finished."""
        row = self._db.execute(_TRIAL.format(join="") + "WHERE p.trial = 0").fetchone()
        return None if row is None else _trial(row, self.folder)

    def ranked(self) -> Iterator[Trial]:
        """Kernels with a speedup, the fastest first; the earlier one of equals.  PyTorch as a baseline is none."""
        query = _TRIAL.format(join="") + _RANKED
        for row in self._db.execute(query, (BASELINE_OPERATOR,)):
            yield _trial(row, self.folder)

    def verdicts(self) -> dict[str, int]:
        """Finished trials by verdict, most frequent first."""
        return dict(self._db.execute("SELECT verdict, COUNT(*) FROM evaluations GROUP BY 1 ORDER BY 2 DESC, 1"))

    def operators(self) -> list[OperatorCredit]:
        """Credit of each operator, most used first."""
        return [OperatorCredit(*row) for row in self._db.execute(_CREDIT)]

    def lineage(self, index: int) -> list[Trial]:
        """The trial `index`, the parent that it was made from, that one's, and so on to the seed.

        Runs of earlier versions do not say which of two parents that was: there it is the first one.
        """
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
        return self._count(evaluated=True)

    def pending_count(self) -> int:
        """Returns how many candidates wait for an evaluation, without the seed."""
        return self._count(evaluated=False)

    def _count(self, *, evaluated: bool) -> int:
        return int(self._db.execute(_COUNT, (*FIRST_OPERATORS, evaluated)).fetchone()[0])

    def finished_before(self) -> dict[int, int]:
        """By trial, how many evaluations were stored before its proposal was."""
        query = "SELECT p.trial, (SELECT COUNT(*) FROM evaluations e WHERE e.at <= p.at) FROM proposals p"
        return dict(self._db.execute(query))

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

    def seed_estimate(self) -> SeedEstimate | None:
        """Returns what was known of the seed kernel before anything was evaluated; None if that was not asked for."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'seed_estimate'").fetchone()
        if row is None:
            return None
        with decoding(self.folder, "meta", "seed_estimate"):
            return seed_estimate_from_json(row[0])

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
        by_name: dict[str, list[tuple[str, float | None, float | None, int]]] = {}
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
            if isinstance(error, UNDECODABLE):  # of rows that a query of one's own read, or a mistake in the program
                self._check_rows()
        finally:
            self.close()
        if is_damage(error):
            raise damaged(self.folder / FILE, error) from error

    def check_parents(self) -> None:
        """Raises StoreError if a parent of a trial is missing: for readers of rows, who make no records of them."""
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
                parse_integers(parents), parse_object(spans or "{}")
                [(m["role"], m["text"]) for m in parse_object(request)["messages"]]


def read_info(db: sqlite3.Connection, folder: Path) -> RunInfo:
    try:
        meta = dict(db.execute("SELECT key, value FROM meta"))
    except sqlite3.DatabaseError as error:
        raise damaged(folder / FILE, error) from error
    with decoding(folder, "meta"):
        task_hash, settings = meta["task_hash"], meta["config"]
        versions, environment = parse_object(meta["versions"]), parse_object(meta["environment"])
        parse_object(settings)
    try:
        config = RunConfig.from_json(settings)
    except (*UNDECODABLE, ConfigError) as error:
        raise StoreError(
            f"expected settings known here in {folder / FILE}, got: {error}; read it with the version that "
            f"wrote it ({versions.get('evo', 'unknown')})"
        ) from error
    return RunInfo(config=config, task_hash=task_hash, versions=versions, environment=environment)


def _hint_credit(name: str, outcomes: Sequence[tuple[str, float | None, float | None, int]]) -> HintCredit:
    """outcomes: (verdict, speedup, speedup of the best parent, whether it improved) of each trial."""
    gains = [speedup / parent for _, speedup, parent, _ in outcomes if speedup is not None and parent is not None]
    return HintCredit(
        name=name,
        trials=len(outcomes),
        ok=sum(verdict == Verdict.OK for verdict, *_ in outcomes),
        improved=sum(improved for *_, improved in outcomes),
        gain=math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None,
    )


def _proposal(row: Sequence[Any], folder: Path) -> Proposal:
    index, candidate, text, operator, parents, island, seed, note, cost, bar = row[:10]
    with decoding(folder, "proposals", f"trial {index}"):
        return Proposal(
            index=index, candidate=Candidate(text, candidate), operator=operator, parents=parse_integers(parents),
            island=island, seed=seed, note=note, cost=parse_object(cost), bar=bar_from_json(bar),
        )  # fmt: skip


def _trial(row: Sequence[Any], folder: Path) -> Trial:
    evaluation, speedup, low, high, per_case, estimated = row[10:]
    proposal, fitness = _proposal(row, folder), None
    with decoding(folder, "evaluations", f"trial {proposal.index}"):
        found = evaluation_from_json(evaluation)
        if speedup is not None:
            ci95 = float(low), float(high)
            fitness = Fitness(float(speedup), ci95, parse_object(per_case), bool(estimated))
        return Trial(proposal, found, fitness)
