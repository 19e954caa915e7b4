"""Executes the runs of a campaign and prints each as it ends, for `evo ablate` and `evo bench`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from evo.cli import common
from evo.cli.search import notify

if TYPE_CHECKING:
    from evo.campaign.runner import Conclude, Done
    from evo.campaign.spec import Campaign
    from evo.search.profiling import Profiler
    from fitness.cluster.pool import ClusterEvaluatorFactory
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.tasks.task import Task


def run_campaign(
    campaign: Campaign,
    tasks: Iterable[Task | None],
    workers: int,
    finished: Callable[[], int],
    total: Callable[[], int],
    open_factory: Callable[[], EvaluatorFactory | ClusterEvaluatorFactory],
    conclude: Conclude | None = None,
) -> tuple[list[Done], bool]:
    """Executes the runs that are left and prints each result; returns the failed ones and whether it was interrupted.

    tasks and conclude: see `execute_runs`; finished: counts finished runs, those of other processes too; total: counts
    the runs known so far.
    """
    from evo.campaign.runner import ELSEWHERE, execute_runs
    from evo.core.records import StopReason
    from evo.core.versions import versions
    from evo.search.interrupt import Interrupt
    from evo.search.listener import Terminal

    failed: list[Done] = []
    begin, before, elsewhere = time.monotonic(), finished(), 0
    factory = open_factory()

    def open_evaluator(task: Task) -> Profiler:
        common.say(f"preparing {task.name}: evaluating its seed kernel")
        return factory.open(task)

    with closing(factory), Interrupt(notify) as interrupt:
        running = execute_runs(campaign, tasks, versions(), open_evaluator, workers, interrupt, conclude, Terminal())
        with closing(running), _forced_exit(campaign):
            for done in running:
                if done.reason in (StopReason.INTERRUPTED, ELSEWHERE):
                    elsewhere += done.reason == ELSEWHERE
                    continue
                failed += [done] if done.reason == "failed" else []
                ended, runs = finished() + len(failed), total()
                left = round((time.monotonic() - begin) / max(ended - before, 1) * max(runs - ended, 0))
                ahead = f"ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
                common.say(f"[{ended}/{runs}] {done.run}: {_in_words(campaign, done)}; {ahead}")
        if elsewhere:
            common.say(f"{elsewhere} runs are left to other processes that run this campaign")
        for done in failed:
            common.say(f"failed: {done.run}: {_first_line(done)} ({done.run.folder(campaign.folder)}/failure.txt)")
        return failed, interrupt()


def _in_words(campaign: Campaign, done: Done) -> str:
    from evo.storage.store import RunReader

    if done.reason == "failed":
        return f"failed: {_first_line(done)}"
    with RunReader(done.run.folder(campaign.folder)) as reader:
        best = reader.best()
    assert best is not None and best.fitness is not None  # the seed at least
    return f"{done.reason}, best {best.fitness}"


def _first_line(done: Done) -> str:
    return done.message.partition("\n")[0]


@contextmanager
def _forced_exit(campaign: Campaign) -> Iterator[None]:
    """Exits at once on a second Ctrl-C: what is finished is stored, and child processes end with this one."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"evo: interrupted; the same command continues {campaign.folder}", file=sys.stderr, flush=True)
        os._exit(common.EXIT_INTERRUPTED)
