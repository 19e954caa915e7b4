"""Ends a run of a campaign: certifies its best kernel in full, and times it again in a new process.

The times of a search pick the best of many, so they flatter it a little.  The second timing has a new runner, a new
measurement of the baseline and inputs that the search did not draw; summaries report it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from evo.core.errors import EvoError, StoreError
from evo.core.files import write_whole
from evo.core.records import Candidate, Trial, Verdict
from evo.core.text import short
from evo.search.assemble import certified
from evo.search.listener import Listener
from evo.search.profiling import Profiler
from evo.storage.best import BEST, best_source, write_result
from evo.storage.store import Store

RETIMED = "retimed.json"  # in best/


@dataclass(frozen=True)
class Retiming:
    """What the best kernel of a run, `trial`, came to in a new process.

    `speedup` and `ci95` (of 95%): None unless `verdict` is ok.  INFRASTRUCTURE: it could not be timed again.
    """

    trial: int
    verdict: Verdict
    message: str = ""
    speedup: float | None = None
    ci95: tuple[float, float] | None = None


def conclude(store: Store, evaluator: Profiler, listener: Listener, fresh: Callable[[], Profiler] | None) -> None:
    """Writes best/ of a run that came to its end; nothing if its baseline was not evaluated.

    fresh: opens another evaluator of the same task; None without a GPU: then nothing is timed again.
    """
    seed = store.first()
    if seed is None or seed.fitness is None:
        return
    (store.folder / BEST / RETIMED).unlink(missing_ok=True)  # of an earlier best
    conclusion = certified(store, seed, evaluator, "", listener)
    if fresh is not None and conclusion.best.index:
        _write(store.folder, time_again(conclusion.best, store.info.config.seed, fresh))
    write_result(store.folder, store.info, seed, conclusion)  # its last file says that the run is concluded


def time_again(best: Trial, seed: int, fresh: Callable[[], Profiler]) -> Retiming:
    """Returns what the kernel of a trial comes to in an evaluator that is opened for it, on inputs of their own."""
    candidate = Candidate(best_source(best))
    try:
        with closing(fresh()) as evaluator:
            evaluator.prepare()
            evaluation = evaluator.evaluate(candidate, seed=_inputs(candidate, seed), known={})
    except EvoError as error:  # the GPU is gone; what the search measured stays
        return Retiming(best.index, Verdict.INFRASTRUCTURE, short(str(error)))
    fitness = evaluation.fitness
    if fitness is None:
        return Retiming(best.index, evaluation.verdict, short(evaluation.message))
    return Retiming(best.index, evaluation.verdict, "", fitness.speedup, fitness.ci95)


def _inputs(candidate: Candidate, seed: int) -> int:
    """Returns the seed of inputs that no proposal of the run has: those are keyed by the run's seed alone."""
    return int.from_bytes(hashlib.sha256(f"retime:{candidate.id}:{seed}".encode()).digest()[:4])


def _write(folder: Path, retiming: Retiming) -> None:
    path = folder / BEST / RETIMED
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"expected to write {path}, got: {error}; check the disk and its permissions") from error
    write_whole(path, json.dumps(dataclasses.asdict(retiming), indent=2) + "\n")


def retimed(folder: Path) -> Retiming | None:
    """Returns the second timing of the run in `folder`, None without one.  Raises StoreError if it is damaged."""
    path = folder / BEST / RETIMED
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        ci95 = None if raw["ci95"] is None else (float(raw["ci95"][0]), float(raw["ci95"][1]))
        return Retiming(int(raw["trial"]), Verdict(raw["verdict"]), raw["message"], raw["speedup"], ci95)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(f"expected a second timing in {path}, got: {error!r}; delete best/ to have it made") from error
