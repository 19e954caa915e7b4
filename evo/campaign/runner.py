"""Runs the cells of a campaign: several at once, all of a task on one evaluator.

Starting processes, warming up and measuring the seed is paid for once a task, not once a cell.  Several processes may
run cells of one campaign: each claims a cell before it begins, and leaves alone what another has claimed.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

from evo.campaign.shared import SharedEvaluator
from evo.campaign.spec import Campaign, Cell, check_run
from evo.core.errors import EvoError, StoreError
from evo.core.locks import try_lock
from evo.core.records import Evaluation, StopReason
from evo.search import termination
from evo.search.assemble import make_engine
from evo.search.engine import Engine, Llm
from evo.search.listener import Listener
from evo.search.profiling import Profiler
from evo.storage.folders import FILE
from evo.storage.queries import RunInfo, RunReader
from evo.storage.result import BEST, EVIDENCE
from evo.storage.store import Store

if TYPE_CHECKING:
    from fitness.tasks.task import Task

FAILURE = "failure.txt"
CLAIM = "claim.lock"
ELSEWHERE = "elsewhere"
LOOK_S = 0.5  # between looks for another task
IsDone = Callable[[Path, Cell], bool]  # of a campaign's folder and one of its cells
Conclude = Callable[[Store, Profiler], None]  # writes the result of a run that came to its end


@dataclass(frozen=True)
class Done:
    """A cell that was worked on.

    `reason` is how its run ended, in words; "failed", then with a message; or ELSEWHERE: another process works on it,
    or did.
    """

    cell: Cell
    reason: str
    message: str = ""


def came_to_end(folder: Path, cell: Cell) -> bool:
    """Whether the run of a cell of the campaign in `folder` came to its own end.

    Raises StoreError where it cannot be read, and where it is not the run that the campaign is to have there.
    """
    with RunReader(folder / cell.path) as run:
        check_run(folder, cell, run.info)
        return termination.came_to_end(run)


def finished(folder: Path, cell: Cell) -> bool:
    """As `came_to_end`, but a run that cannot be read or is another did not: going on with it says why."""
    try:
        return came_to_end(folder, cell)
    except StoreError:
        return False


def concluded(folder: Path, cell: Cell) -> bool:
    """Whether the run of a cell of the campaign in `folder` is finished and its result written."""
    return finished(folder, cell) and (folder / cell.path / BEST / EVIDENCE).exists()


def why_failed(folder: Path, cell: Cell) -> str:
    """The first line of what ended the run of a cell when it was tried last; "" where nothing did."""
    path = folder / cell.path / FAILURE
    if finished(folder, cell) or not path.exists():
        return ""
    ends = re.findall(r"^[\w.]+: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)  # of a traceback, not indented
    return ends[-1] if ends else "see failure.txt"


def counter(folder: Path, cells: Iterable[Cell], done: IsDone = finished) -> Callable[[], int]:
    """Counts how many cells of the campaign in `folder` are `done` by now; those that were are not looked at again."""
    left = list(cells)
    total = len(left)

    def count() -> int:
        left[:] = [cell for cell in left if not done(folder, cell)]
        return total - len(left)

    return count


def run_cells(
    campaign: Campaign,
    tasks: Iterable[Task | None],
    versions: Mapping[str, str],
    open_evaluator: Callable[[Task], Profiler],
    workers: int,
    stop: Callable[[], bool],
    conclude: Conclude | None = None,
    listener: Listener | None = None,
) -> Generator[Done, None, None]:
    """Runs what is not finished, `workers` cells at once; each cell as it ends.  A cell that fails stops no other.

    tasks: None where the next one is not known yet.  conclude: of cells whose result is to be written, too.  listener:
    hears of models that fail.
    Close the generator: where it is left early, that waits for what is being evaluated, except after KeyboardInterrupt.
    """
    over, done = threading.Event(), finished if conclude is None else concluded
    ended: Queue[Future[str]] = Queue()
    cells: dict[Future[str], Cell] = {}

    def halted() -> bool:
        return over.is_set() or stop()

    def one(cell: Cell, task: Task, bench: _Bench) -> str:
        with bench, _claimed(campaign.folder, cell, done) as mine:
            if halted():
                return StopReason.INTERRUPTED
            if not mine:
                return ELSEWHERE
            if (campaign.folder / cell.path / FILE).exists():
                came_to_end(campaign.folder, cell)  # raises where it is no run to go on with
            evaluator, first = bench.prepared()
            info = RunInfo(campaign.config(cell), task.hash, versions, evaluator.environment)
            return _run(
                campaign.folder / cell.path,
                info,
                lambda store: make_engine(store, task, first, evaluator, listener or Listener(), stop=halted),
                lambda store: conclude and conclude(store, evaluator),
            )

    def begin(task: Task) -> int:
        """Queues what is left of a task; how many cells."""
        todo = [cell for cell in campaign.cells_of(task.name) if not done(campaign.folder, cell)]
        bench = _Bench(campaign, task, len(todo), open_evaluator)
        for cell in todo:
            future = pool.submit(one, cell, task, bench)
            cells[future] = cell
            future.add_done_callback(ended.put)
        return len(todo)

    pool = ThreadPoolExecutor(workers, thread_name_prefix="cell")
    wait = True
    try:
        for future in _as_ended(tasks, workers, begin, ended, halted):
            yield _done(campaign, cells.pop(future), future)
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        over.set()
        pool.shutdown(wait=wait, cancel_futures=True)


def _as_ended(
    tasks: Iterable[Task | None],
    workers: int,
    begin: Callable[[Task], int],
    ended: Queue[Future[str]],
    halted: Callable[[], bool],
) -> Iterator[Future[str]]:
    """Begins tasks as they come and workers are free, and gives what ended as it ends.

    A task is asked for no sooner than it can begin: by then a better one may have come.
    """
    running = 0
    for task in tasks:
        if halted():
            break
        running += begin(task) if task is not None else 0
        looked = False
        while running >= workers or (task is None and not looked):
            looked = True
            with suppress(Empty):
                future = ended.get(timeout=LOOK_S)
                running -= 1
                yield future
    for _ in range(running):
        yield ended.get()


def _done(campaign: Campaign, cell: Cell, future: Future[str]) -> Done:
    failure = future.exception()
    return _failed(campaign, cell, failure) if failure is not None else Done(cell, future.result())


@contextmanager
def _claimed(folder: Path, cell: Cell, done: IsDone) -> Iterator[bool]:
    """Whether a cell is this process's to run: nobody runs it, and nobody got it done meanwhile."""
    (folder / cell.path).mkdir(parents=True, exist_ok=True)
    with try_lock(folder / cell.path / CLAIM) as mine:
        yield mine and not done(folder, cell)


class _Bench:
    """The evaluator of a task: opened and prepared by the first cell, closed by the last.

    Entered once by each of its `cells`.  Cells are begun task by task, so few of them are open at once.
    """

    def __init__(self, campaign: Campaign, task: Task, cells: int, open_evaluator: Callable[[Task], Profiler]) -> None:
        self._campaign, self._task, self._left, self._open = campaign, task, cells, open_evaluator
        self._lock = threading.Lock()
        self._evaluator: Profiler | None = None
        self._first: Evaluation | Exception | None = None

    def prepared(self) -> tuple[Profiler, Evaluation]:
        """The evaluator and its evaluation of the seed; raises what preparing raised, for every cell."""
        with self._lock:
            if self._evaluator is None:
                self._evaluator = self._open(self._task)
                if self._campaign.device == "cpu":
                    self._evaluator = SharedEvaluator(self._evaluator, self._campaign.folder, self._task.hash)
            if self._first is None:
                try:
                    self._first = self._evaluator.prepare()
                except Exception as error:
                    self._first = error
            if isinstance(self._first, Exception):
                raise self._first
            return self._evaluator, self._first

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._left -= 1
            if not self._left and self._evaluator is not None:
                self._evaluator.close()


def _run(
    folder: Path,
    info: RunInfo,
    make_engine: Callable[[Store], tuple[Engine, Llm | None]],
    conclude: Callable[[Store], object],
) -> str:
    """Starts the run of a cell or goes on with it; how it ended.  Raises EvoError where its models fell silent."""
    if (folder / FILE).exists():
        store = Store.resume(folder, task_hash=info.task_hash, versions=info.versions)
    else:
        store = Store.create(folder, info)
    with store:
        if termination.fell_silent(store):
            raise EvoError(f"no model answered any more, so this cell is none of its arm; delete {folder} to repeat it")
        engine, llm = make_engine(store)
        outcome = engine.run()
        if llm is not None and llm.lane.ended is StopReason.SILENT:
            store.event("ended", StopReason.SILENT)
            raise EvoError(f"{StopReason.SILENT}, so this cell is none of its arm; delete {folder} to repeat it")
        if outcome.reason is not StopReason.INTERRUPTED:
            conclude(store)
    (folder / FAILURE).unlink(missing_ok=True)
    return outcome.text


def _failed(campaign: Campaign, cell: Cell, error: BaseException) -> Done:
    """The story is kept in the cell's folder; re-running tries again."""
    folder = campaign.folder / cell.path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Done(cell, "failed", str(error) or type(error).__name__)
