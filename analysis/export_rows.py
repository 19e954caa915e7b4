"""Reads the rows of each table of `analysis.export_schema` from the store of a run, one after the other.

Rows are tuples in the order of the columns, without the first (`run`).  Times are microseconds since 1970.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

from evo.core.records import Verdict
from evo.storage import tables
from evo.storage.queries import RunReader

Row = tuple[Any, ...]


def runs(run: RunReader) -> Iterator[Row]:
    info, config = run.info, run.info.config
    counts = tables.run_counts(run)
    *best, estimated = tables.best_row(run)
    events = run.events()
    kind, text, at = events[-1] if events else (None, None, None)
    yield (
        str(run.folder), config.task, info.task_hash, config.target, config.device, config.strategy,
        list(config.operators), config.seed, config.budget, config.workers, config.islands,
        config.baseline, *counts, *best, _flag(estimated),
        _time(events[0][2] if events else None), kind, text, _time(at),
        config.to_json(), dict(info.versions), _json(info.environment), fingerprint(run),
    )  # fmt: skip


def trials(run: RunReader) -> Iterator[Row]:
    for row in tables.trial_rows(run):
        trial, candidate, operator, parents, island, seed, note, cost, at = row[:9]
        finished, finished_at, seconds, *verdict, estimated, bar = row[9:]
        yield (
            trial, candidate, operator, json.loads(parents), island, seed, note, json.loads(cost), _time(at),
            finished, _time(finished_at), seconds, *verdict, _flag(estimated), bar,
        )  # fmt: skip


def lineage(run: RunReader) -> Iterator[Row]:
    for *row, estimated in tables.lineage_rows(run):
        yield *row, _flag(estimated)


def evaluations(run: RunReader) -> Iterator[Row]:
    for row in tables.evaluation_rows(run):
        finished, trial, candidate, verdict, stage, speedup, low, high, estimated, per_case, text, at = row
        e = json.loads(text)
        scored = json.loads(per_case or "{}")
        cases = [_case(timing, scored[timing["case"]]) for timing in e["timings"]]
        check = e["check"] or {}
        yield (
            finished, trial, candidate, verdict, stage, Verdict(verdict).rank, e["message"],
            speedup, low, high, _flag(estimated), cases, e["findings"], e["builds"],
            *(check.get(name) for name in ("cases", "worst_case", "max_error", "budget")),
            e["plan_hash"], e["duplicate_of"] or None, e["seconds"], _json(e["environment"]), _time(at),
        )  # fmt: skip


def _case(timing: dict[str, Any], speedup: float) -> dict[str, Any]:
    low, high = timing["ci95"]
    kept = {name: timing[name] for name in ("case", "ratio", "estimated", "terms")}
    least_us = timing.get("attainable_us")
    return kept | {"speedup": speedup, "ci_low": low, "ci_high": high, "attainable_us": least_us}


def timings(run: RunReader) -> Iterator[Row]:
    for trial, text in tables.ok_evaluations(run):
        for timing in json.loads(text)["timings"]:
            case, estimated, least_us = timing["case"], timing["estimated"], timing.get("attainable_us")
            pairs = zip_longest(timing["samples_us"], timing["baseline_us"])
            for sample, (candidate_us, baseline_us) in enumerate(pairs):
                yield trial, case, sample, candidate_us, baseline_us, least_us, estimated


def profiles(run: RunReader) -> Iterator[Row]:
    names = ("bottleneck", "reason", "case", "kernel", "roofline", "numbers", "before", "metrics", "hints", "fallback")
    for trial, candidate, tier, text, at in tables.profile_rows(run):
        profile = json.loads(text)
        yield trial, candidate, tier, *(profile[name] for name in names), _time(at)


def llm_calls(run: RunReader, *, with_text: bool = False) -> Iterator[Row]:
    for row in tables.call_rows(run, with_text=with_text):
        *first, parents = row[:6]
        *rest, asked_at, answered_at = row[6:]
        yield *first, json.loads(parents), *rest, _time(asked_at), _time(answered_at)


def sources(run: RunReader) -> Iterator[Row]:
    for candidate, trial, text, evaluation in tables.source_rows(run):
        frozen = json.loads(evaluation)["frozen_source"] if evaluation else ""
        yield candidate, trial, text, frozen or None


ROWS: dict[str, Callable[[RunReader], Iterator[Row]]] = {
    f.__name__: f for f in (runs, trials, lineage, evaluations, timings, profiles, sources)
}


def rows(run: RunReader, table: str, *, with_text: bool = False) -> Iterator[Row]:
    """Rows of one of the tables of `analysis.export_schema.EXPORT`."""
    return llm_calls(run, with_text=with_text) if table == "llm_calls" else ROWS[table](run)


def fingerprint(run: RunReader) -> str:
    """12 hex digits of what the run's numbers depend on besides its task and its settings."""
    facts = _json({"versions": dict(run.info.versions), "environment": run.info.environment})
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


def _time(seconds: float | None) -> int | None:
    """Microseconds since 1970."""
    return None if seconds is None else round(seconds * 1e6)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
