"""Runs a search under a progress display and prints its result, for `run`, `resume` and `ablate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evo.cli import common, models
from evo.core.errors import EvoError
from evo.core.text import counted, quoted

if TYPE_CHECKING:
    from evo.core.records import Evaluation
    from evo.search.engine import Engine, EngineOutcome, Evaluator, Llm, Observer
    from evo.search.profiling import Profiler
    from evo.storage.result import Result
    from evo.storage.store import Store
    from fitness.tasks.task import Task

INTERRUPTED = "the run was interrupted"
NO_EVALUATOR = "no evaluator was at hand, `evo certify TASK best/kernel.py` opens one"


def search(store: Store, task: Task, first: Evaluation, evaluator: Profiler) -> int:
    """Runs the engine, then writes and prints the result."""
    return conclude(store, run_engine(store, task, first, evaluator), evaluator)


def run_engine(
    store: Store,
    task: Task,
    first: Evaluation | None,
    evaluator: Profiler | None,
    *,
    proposals: int | None = None,
) -> EngineOutcome:
    """Runs the engine under a progress display; `proposals` and no evaluator as in Engine."""
    from rich.console import Console

    from evo.cli.progress import Progress
    from evo.search.interrupt import Interrupt

    config = store.info.config
    if config.models and proposals != 0:
        models.describe(config)
    with _forced_exit(store, evaluator), Interrupt(notify) as interrupt, Progress(config, Console()) as progress:
        engine, _ = make_engine(store, task, first, evaluator, [progress], interrupt, proposals)
        return engine.run()


def make_engine(
    store: Store,
    task: Task,
    first: Evaluation | None,
    evaluator: Profiler | None,
    watching: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    proposals: int | None = None,
) -> tuple[Engine, Llm | None]:
    """The engine of the run in `store`, with the models it asks, if it does."""
    from evo.search.engine import Engine
    from evo.search.profiling import ProfilingEvaluator
    from operators.registry import get_operators

    config = store.info.config
    rules = [name for name in config.operators if "@" not in name]
    operators = {o.name: o for o in get_operators(rules)} if rules else {}
    llm = models.open_llm(store, task) if config.models and proposals != 0 else None
    score = common.scorer()
    judge: Evaluator | None = evaluator
    observers: list[Observer] = []
    if evaluator is not None and config.models and config.guidance != "none":
        judge = profiling = ProfilingEvaluator(evaluator, score, store.folder)
        observers.append(profiling)
    observers += watching
    engine = Engine(store, first, task.seed_source, judge, score, operators, observers, stop, proposals, llm)
    return engine, llm


def notify() -> None:
    print("\nevo: stopping when what is being evaluated is done; Ctrl-C again drops it", file=sys.stderr, flush=True)


@contextmanager
def _forced_exit(store: Store, evaluator: Evaluator | None) -> Iterator[None]:
    """A second Ctrl-C: everything finished is stored already, so leave at once, without waiting for worker threads."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"evo: interrupted; go on by `evo resume {quoted(store.folder)}`", file=sys.stderr, flush=True)
        if evaluator is not None:
            evaluator.close()
        store.close()
        os._exit(common.EXIT_INTERRUPTED)


def conclude(store: Store, outcome: EngineOutcome | None = None, evaluator: Evaluator | None = None) -> int:
    """Certifies and writes the best kernel and prints what there is to know.

    Without an evaluator nothing can be certified: what was found out before is then written again.
    """
    from evo.core.records import Trial
    from evo.search.termination import SILENT
    from evo.storage.result import read_result, speedup_text, write_result

    folder = store.folder
    interrupted = outcome is not None and outcome.reason == "interrupted"
    if outcome is not None:
        common.say(f"ended: {outcome.reason}, {counted(outcome.spent, 'candidate')} evaluated")
        models.say_failures(store)
    seed = store.trial(0) if store.best() is not None else None
    if not isinstance(seed, Trial):  # it is the first to finish
        common.say(f"interrupted before the seed was evaluated; go on by `evo resume {quoted(folder)}`")
        return common.EXIT_INTERRUPTED
    result: Result | None = None if evaluator is not None else read_result(store)
    if result is None:
        certify = None if interrupted else evaluator
        result = certified(store, certify, INTERRUPTED if interrupted else NO_EVALUATOR)
    write_result(folder, store.info, seed, result)
    best, fitness = result.best, result.best.fitness
    assert fitness is not None  # it is ranked by its speedup
    if best.index == 0:
        common.say("nothing faster than the seed was found; best/kernel.py is the seed")
    else:
        common.say(f"\n{result.patch(seed)}")
        common.say(f"best: {speedup_text(fitness)} against the seed, trial {best.index}")
        if fitness.estimated:
            common.say("      estimated: a model of the target computed it, no GPU measured it")
        if fitness.eager:
            common.say("      eager: the weaker tier, its Python was called and timed from outside (docs/gpu.md)")
        if fitness.ci95[0] <= 1:
            common.say("      the interval includes 1: it may be no faster")
    common.say(f"certificate: {result.certificate.summary}")
    common.say(f"kernel: {folder / 'best' / 'kernel.py'} (diff.patch, result.json and evidence.json beside it)")
    common.say(f"look closer: evo show {quoted(folder)}, evo show {quoted(folder)} {best.index}")
    if interrupted:
        common.say(f"go on: evo resume {quoted(folder)}")
    if outcome is not None and outcome.reason == SILENT and not outcome.spent:
        return common.EXIT_NOT_OK  # nothing was searched
    return common.EXIT_INTERRUPTED if interrupted else 0


def certified(store: Store, evaluator: Evaluator | None, why_not: str) -> Result:
    """Returns the fastest trial whose certificate does not fail; the seed if all others fail."""
    from evo.core.records import Candidate, Certificate, Verdict
    from evo.core.text import short
    from evo.storage.result import Result, best_source

    refused: list[tuple[int, Certificate]] = []
    for trial in store.ranked():
        source = best_source(trial)
        if evaluator is None:
            return Result(trial, Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, why_not))
        stands = trial.index == 0
        try:
            certificate = evaluator.certify(source, seed=store.info.config.seed)
            stands |= certificate.verdict in (Verdict.OK, Verdict.INFRASTRUCTURE)
        except EvoError as error:  # the GPU is gone: what was measured is written all the same
            certificate = Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, short(str(error)))
            stands = True
        except Exception as error:  # a fault of evo's, or a trick that it does not know yet: neither may end the run
            message = short(f"certifying it ended in {type(error).__name__}: {error}")
            certificate = Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, message)
        if stands:
            return Result(trial, certificate, tuple(refused))
        text = f"trial {trial.index} is not certified: {certificate.verdict}: {certificate.message}"
        common.say(f"{text}; trying the next best")
        store.event("refused", text)
        refused.append((trial.index, certificate))
    raise AssertionError("the seed was evaluated, so it is among the ranked")
