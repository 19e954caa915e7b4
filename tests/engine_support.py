"""Hand-made records, and runs of the real engine on an instant evaluator."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.benchmarks.instant import OPERATORS, SEED_SOURCE, InstantEvaluator, genes, score
from evo.core.records import Bar, Build, Candidate, Check, Evaluation, Fitness, Proposal, Timing, Trial, Verdict
from evo.core.settings import RunConfig
from evo.search.engine import Engine, EngineOutcome
from evo.storage.queries import RunInfo
from evo.storage.store import Store
from operators.base import Context, Draft, Operator, Parent


class Screening:
    """Screens four variants and drafts the best, as an operator with an inner search does."""

    name, arity = "screening", 1

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        if context.screen is None:
            return None
        old = genes(parents[0].source)
        sources = []
        for _ in range(4):
            values = list(old)
            values[context.rng.randrange(3)] += context.rng.randint(1, 900)
            sources.append(parents[0].source.replace(f"GENES={old}", f"GENES={tuple(values)}"))
        estimates = context.screen(sources)
        best = max(range(4), key=lambda i: estimates[i] or 0.0)
        return Draft(sources[best], f"best of 4, {genes(sources[best])}", {"screened": 4})


ALL_OPERATORS: dict[str, Operator] = {**OPERATORS, "screening": Screening()}


class SlowEvaluator(InstantEvaluator):
    """Takes `sleep_s` an evaluation and notes each in `log` (one candidate id a line)."""

    def __init__(self, sleep_s: float = 0.0, log: Path | None = None) -> None:
        self.sleep_s, self.log = sleep_s, log
        self.evaluated: list[str] = []
        self.screened: list[str] = []
        self._lock = threading.Lock()

    def prepare(self) -> Evaluation:
        return InstantEvaluator().prepare()

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        with self._lock:
            self.evaluated.append(candidate.id)
            if self.log is not None:
                with self.log.open("a") as log:
                    log.write(candidate.id + "\n")
        time.sleep(self.sleep_s)
        return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        self.screened += sources
        return super().screen(sources)


class MeasuringEvaluator(SlowEvaluator):
    """Says that a GPU took 0.5 to 1.5 s, a function of the source, after a wait that is nobody's."""

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        evaluation = super().evaluate(candidate, seed=seed, known=known, bar=bar)
        return dataclasses.replace(evaluation, seconds={"time": 0.5 + int(candidate.id[:4], 16) / 0xFFFF, "wait": 9.0})


class MoreWarps(InstantEvaluator):
    """Estimates that more warps are faster."""

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        return [float(re.findall(r"num_warps=(\d+)", source)[0]) for source in sources]


def config(**changes: Any) -> RunConfig:
    return RunConfig(**{"task": "instant", "operators": tuple(ALL_OPERATORS), "budget": 40} | changes)


def create(folder: Path, **changes: Any) -> Store:
    return Store.create(folder, RunInfo(config(**changes), "hash", {"evo": "1"}, {"sandbox": {"seccomp": "active"}}))


def resume(folder: Path) -> Store:
    return Store.resume(folder, task_hash="hash", versions={"evo": "1"})


def search(store: Store, evaluator: InstantEvaluator | None = None, **more: Any) -> EngineOutcome:
    """Runs the engine on `store` until it ends."""
    evaluator = evaluator or InstantEvaluator()
    operators = {name: ALL_OPERATORS[name] for name in store.info.config.operators}
    return Engine(store, evaluator.prepare(), SEED_SOURCE, evaluator, score, operators, **more).run()


def facts(folder: Path) -> dict[str, list[Any]]:
    """All a run's tables say, but for the clock: no `at` columns, no seconds of stages and compilers, no events."""
    found: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        for table in ("meta", "sources", "proposals", "evaluations", "screens"):
            rows = [dict(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY 1")]
            for row in rows:
                row.pop("at", None)
                if "evaluation" in row:
                    evaluation = json.loads(row["evaluation"])
                    builds = [{**build, "compile_s": 0.0} for build in evaluation["builds"]]
                    row["evaluation"] = {**evaluation, "seconds": {}, "builds": builds}
            found[table] = rows
    return found


def proposal(index: int, source: str = "", **fields: Any) -> Proposal:
    source = source or f"x = {index}\n"
    return Proposal(index, Candidate(source), fields.pop("operator", "mutate"), **fields)


def ok_trial(
    index: int,
    speedup: float = 1.0,
    *,
    per_case: Mapping[str, float] | None = None,
    terms: Mapping[str, float] | None = None,
    registers: int = 32,
    shared: int = 0,
    warps: int = 4,
    occupancy: float = 1.0,
    attainable_us: float | None = None,
    **fields: Any,
) -> Trial:
    """A finished trial of verdict OK."""
    made = proposal(index, **fields)
    per_case = per_case or {"square": speedup}
    timings = tuple(
        Timing(c, (1 / r,), (1.0,), r, (r, r), True, dict(terms or {}), attainable_us) for c, r in per_case.items()
    )
    sass = hashlib.sha256(made.candidate.id.encode()).hexdigest()
    evaluation = Evaluation(
        candidate=made.candidate.id,
        verdict=Verdict.OK,
        stage="done",
        builds=(Build("kernel", registers, 0, shared, warps, occupancy, sass),),
        check=Check(2, "odd", 0.5, 1e-6),
        timings=timings,
        plan_hash=sass,
    )
    return Trial(made, evaluation, Fitness(speedup, (speedup * 0.9, speedup * 1.1), per_case, estimated=True))


def failed_trial(index: int, verdict: Verdict = Verdict.WRONG, message: str = "wrong result", **fields: Any) -> Trial:
    made = proposal(index, **fields)
    return Trial(made, Evaluation(made.candidate.id, verdict, "verify", message=message))
