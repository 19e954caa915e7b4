"""Runs the cells of a campaign: several at once, task by task, on one evaluator (and one GPU) a task.

Starting processes, warming up and measuring the seed is paid for once a task, not once a cell; and as all cells of a
task go through one runner, no two timings overlap.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo.campaign import Campaign, Cell
from evo.config import RunConfig
from evo.engine import Engine, Evaluator, Score
from evo.errors import StoreError
from evo.records import Evaluation
from evo.shared import SharedEvaluator
from evo.store import FILE, RunInfo, RunReader, Store

if TYPE_CHECKING:
    from fitness.task import Task

FAILURE = "failure.txt"


@dataclass(frozen=True)
class Done:
    """A cell that was worked on.  `reason` is how its run ended, or "failed", then with a message."""

    cell: Cell
    reason: str
    message: str = ""


def finished(folder: Path) -> bool:
    """Whether the run in `folder` came to its own end.  One that cannot be read did not: going on with it says why."""
    try:
        with RunReader(folder) as run:
            ends = [text for kind, text, _ in run.events()[-1:] if kind == "ended"]
    except StoreError:
        return False
    return ends not in ([], ["interrupted"])


def run_cells(
    campaign: Campaign,
    tasks: Mapping[str, Task],
    versions: Mapping[str, str],
    open_evaluator: Callable[[Task], Evaluator],
    score: Score,
    workers: int,
    stop: Callable[[], bool],
) -> Iterator[Done]:
    """Runs what is not finished, `workers` cells at once; each cell as it ends.  A cell that fails stops no other."""
    for name, task in tasks.items():
        todo = [c for c in campaign.cells() if c.task == name and not finished(campaign.folder / c.path)]
        if not todo or stop():
            continue
        evaluator = open_evaluator(task)
        if campaign.device == "cpu":
            evaluator = SharedEvaluator(evaluator, campaign.folder, task.hash)
        with closing(evaluator):
            yield from _run_task(campaign, task, todo, versions, evaluator, score, workers, stop)


def _run_task(
    campaign: Campaign,
    task: Task,
    todo: Sequence[Cell],
    versions: Mapping[str, str],
    evaluator: Evaluator,
    score: Score,
    workers: int,
    stop: Callable[[], bool],
) -> Iterator[Done]:
    try:
        first = evaluator.prepare()
    except Exception as error:
        for cell in todo:
            yield _failed(campaign, cell, error)
        return

    def one(cell: Cell) -> str:
        info = RunInfo(campaign.config(cell), task.hash, versions, evaluator.environment)
        return _run(campaign.folder / cell.path, info, task.seed_source, first, evaluator, score, stop)

    with ThreadPoolExecutor(workers, thread_name_prefix="cell") as pool:
        futures: dict[Future[str], Cell] = {pool.submit(one, cell): cell for cell in todo}
        for future in as_completed(futures):
            failure = future.exception()
            if failure is None:
                yield Done(futures[future], future.result())
            else:
                yield _failed(campaign, futures[future], failure)


def _run(
    folder: Path,
    info: RunInfo,
    seed_source: str,
    first: Evaluation,
    evaluator: Evaluator,
    score: Score,
    stop: Callable[[], bool],
) -> str:
    """Starts the run of a cell or goes on with it; how it ended."""
    from operators.registry import get_operators

    if stop():
        return "interrupted"
    config: RunConfig = info.config
    operators = {o.name: o for o in get_operators(config.operators)}
    if (folder / FILE).exists():
        store = Store.resume(folder, task_hash=info.task_hash, versions=info.versions)
    else:
        store = Store.create(folder, info)
    with store:
        reason = Engine(store, first, seed_source, evaluator, score, operators, stop=stop).run().reason
    (folder / FAILURE).unlink(missing_ok=True)
    return reason


def _failed(campaign: Campaign, cell: Cell, error: BaseException) -> Done:
    """The story is kept in the cell's folder; re-running tries again."""
    folder = campaign.folder / cell.path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Done(cell, "failed", str(error) or type(error).__name__)
