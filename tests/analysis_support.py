"""A small run with one of everything a store can hold."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from evo.core.records import Evaluation, Finding, Hint, Profile, Timing, Trial, Verdict, profile_to_json
from evo.storage.folders import FILE
from evo.storage.store import Store
from tests.engine_support import create, failed_trial, ok_trial, proposal

ODD = 'broken \ud800 text, a "quote", a comma,\na second line, ü and \\'


def measured_trial(index: int, speedup: float, samples: int = 3, *, sure: bool = True, **fields: Any) -> Trial:
    """A trial timed on a GPU; `sure`: its interval excludes 1."""
    trial = ok_trial(index, speedup, **fields)
    ours = tuple(10.0 + i / 7 for i in range(samples))
    timing = Timing(
        "square",
        ours,
        tuple(t * speedup for t in ours),
        speedup,
        (speedup * 0.9, speedup * 1.1),
        False,
        {"counts": 1.0},
    )
    evaluation = dataclasses.replace(trial.evaluation, timings=(timing,), frozen_source=f"frozen = {index}\n")
    low = speedup * 0.99 if sure else 0.9
    fitness = dataclasses.replace(trial.fitness, ci95=(low, speedup * 1.01), estimated=False)
    return Trial(trial.proposal, evaluation, fitness)


def trials() -> list[Trial]:
    """In the order they finish: measured and estimated ones, a duplicate, failures at several stages."""
    seed = measured_trial(0, 1.0, operator="seed", note="the seed", sure=False)
    twin = proposal(3, operator="nudge", parents=(1,))
    rules = proposal(4, operator="mutate@model", parents=(1, 0))
    gate = (Finding("imports", 3, ODD), Finding("names", 0, "no"))
    return [
        seed,
        measured_trial(2, 3.0, 4, parents=(0,), operator="mutate@model", cost={"screened": 3, "share": 0.1}, island=1),
        measured_trial(1, 2.0, 2, parents=(0,), operator="mutate@model", seed=2**63 - 1),
        Trial(
            twin,
            Evaluation(
                twin.candidate.id, Verdict.DUPLICATE, "screen", "same work", duplicate_of=seed.proposal.candidate.id
            ),
        ),
        Trial(rules, Evaluation(rules.candidate.id, Verdict.REJECTED, "gate", ODD, findings=gate)),
        failed_trial(5, Verdict.WRONG, parents=(2,)),
        ok_trial(6, 1.5, parents=(2, 1), per_case={"square": 1.0, "wide": 2.25}, terms={"memory": 0.5}),
        failed_trial(7, Verdict.INFRASTRUCTURE, "the runner died", parents=(0,)),
    ]


PENDING = proposal(8, operator="mutate@model", parents=(6,), note="waits")
PROFILE = Profile(
    "ncu", "memory", "loads stall", {"stalls %": 61.0}, 0.4, {"stalls %": 70.5}, (Hint("tile", "tile it"),), "square",
    "kernel", {"dram bytes": 1e9}, "",
)  # fmt: skip


def fill(folder: Path) -> None:
    """Makes the run: the trials above, one pending, one profile, the calls of `CALLS`."""
    with create(folder) as store:
        done = trials()
        for made in sorted((t.proposal for t in done), key=lambda p: p.index):
            store.proposed(made)
        store.proposed(PENDING)
        for trial in done:
            store.finished(trial)
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        row = (done[1].proposal.candidate.id, "ncu", profile_to_json(PROFILE), 1.7e9)
        db.execute("INSERT INTO profiles VALUES (?, ?, ?, ?)", row)
        for call in CALLS:
            add_call(db, *call)


def answered(trial: int, plan: str = "") -> str:
    """An answer that holds the source of that trial."""
    return f"{plan}{chr(10) * bool(plan)}```python\n{proposal(trial).candidate.source}```"


# (trial made of it, prompt, answer): two answers to the first prompt, in one group; one to a prompt of its own ...
CALLS: Sequence[tuple[int | None, str, str | None]] = (
    (1, "make it faster", answered(1, "Plan: tile ü.")),
    (2, "make it faster", answered(2)),
    (4, "make it faster", answered(4, "Plan: cheat.")),
    (3, "again", answered(3)),
    (5, "and again", answered(5)),
    (6, "mix", answered(6)),
    (7, "unlucky", answered(7)),  # the evaluator failed
    (8, "late", answered(8)),  # not evaluated yet
    (None, "silent", None),  # the model did not answer
)


def add_call(db: sqlite3.Connection, trial: int | None, prompt: str, answer: str | None, model: str = "model") -> None:
    request = {
        "messages": [{"role": "system", "text": "You write kernels."}, {"role": "user", "text": prompt}],
        "parameters": {"temperature": 0.7},
    }
    row = {
        "prompt_hash": f"hash of {prompt}", "model": model, "operator": f"mutate@{model}", "parents": "[0]",
        "island": 0, "told": 1, "trial": trial, "request": json.dumps(request), "answer": answer,
        "spans": None if answer is None else json.dumps(spans(answer)), "finish": answer and "stop",
        "tokens_in": 100, "tokens_out": answer and 50, "usd": 0.001, "attempts": 1, "seconds": answer and 2.5,
        "error": None if answer else "timed out", "asked_at": 1.7e9 + 0.123456, "answered_at": answer and 1.7e9 + 3,
    }  # fmt: skip
    marks = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO llm_calls ({', '.join(row)}) VALUES ({marks})", row)


def spans(answer: str) -> dict[str, tuple[int, int]]:
    if "python\n" not in answer:
        return {}
    code = answer.index("python\n") + len("python\n")
    found = {"code": (code, answer.rindex("```"))}
    return found | ({"plan": (0, answer.index("\n"))} if answer.startswith("Plan") else {})


def stored(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """What the store itself says."""
    with closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def grow(store: Store, index: int) -> Trial:
    """One more finished trial."""
    trial = ok_trial(index, 1.0 + index, parents=(0,) if index else ())
    store.proposed(trial.proposal)
    store.finished(trial)
    return trial
