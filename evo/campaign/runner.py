"""Executes the runs of a campaign: several at once, all runs of a task on one evaluator.

So processes start, warm up and measure the seed once a task, not once a run.  Several processes may share a campaign:
each claims a run before it begins, and leaves alone what another has claimed.
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
from evo.campaign.spec import Campaign, CampaignRun, check_run
from evo.core.errors import EvoError, StoreError
from evo.core.locks import try_lock
from evo.core.records import Evaluation, StopReason
from evo.search import termination
from evo.search.assemble import make_engine
from evo.search.engine import Engine, Llm
from evo.search.listener import Listener
from evo.search.profiling import Profiler
from evo.storage.best import BEST, EVIDENCE
from evo.storage.folders import FILE
from evo.storage.queries import RunInfo, RunReader
from evo.storage.store import Store

if TYPE_CHECKING:
    from fitness.tasks.task import Task

FAILURE = "failure.txt"
CLAIM = "claim.lock"
ELSEWHERE = "elsewhere"
LOOK_S = 0.5  # between looks for another task
IsDone = Callable[[Path, CampaignRun], bool]  # arguments: a campaign's folder and one of its runs
Conclude = Callable[[Store, Profiler], None]  # writes the result of a run that came to its own end


@dataclass(frozen=True)
class Done:
    """A run that this process is done with.

    `reason`: how the run ended, in words; "failed", then with a message; or ELSEWHERE: another process has it.
    """

    run: CampaignRun
    reason: str
    message: str = ""


def came_to_end(folder: Path, run: CampaignRun) -> bool:
    """Returns whether a run of the campaign in `folder` came to its own end.

    Raises StoreError if it cannot be read, or if the folder holds another run than the campaign's.
    """
    with RunReader(run.folder(folder)) as reader:
        check_run(folder, run, reader.info)
        return termination.came_to_end(reader)


def finished(folder: Path, run: CampaignRun) -> bool:
    """Returns what `came_to_end` does, but False if it raises: executing that run says why."""
    try:
        return came_to_end(folder, run)
    except StoreError:
        return False


def concluded(folder: Path, run: CampaignRun) -> bool:
    """Returns whether a run of the campaign in `folder` is finished and its result written."""
    return finished(folder, run) and (run.folder(folder) / BEST / EVIDENCE).exists()


def why_failed(folder: Path, run: CampaignRun) -> str:
    """Returns the first line of the error that ended a run at its last try; "" without an error."""
    path = run.folder(folder) / FAILURE
    if finished(folder, run) or not path.exists():
        return ""
    errors = re.findall(r"^[\w.]+: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)  # lines not indented
    return errors[-1] if errors else "see failure.txt"


def counter(folder: Path, runs: Iterable[CampaignRun], done: IsDone = finished) -> Callable[[], int]:
    """Returns a function that counts the `done` runs of the campaign in `folder`; it checks a done run only once."""
    left = list(runs)
    total = len(left)

    def count() -> int:
        left[:] = [run for run in left if not done(folder, run)]
        return total - len(left)

    return count


def execute_runs(
    campaign: Campaign,
    tasks: Iterable[Task | None],
    versions: Mapping[str, str],
    open_evaluator: Callable[[Task], Profiler],
    workers: int,
    stop: Callable[[], bool],
    conclude: Conclude | None = None,
    listener: Listener | None = None,
) -> Generator[Done, None, None]:
    """Executes the runs that are not finished, `workers` at once, and yields each as it ends.

    A run that fails does not stop the others.  tasks: None if the next one is not known yet.  conclude: writes the
    result of a run, if results are wanted.  listener: hears of models that fail.  Close the generator: if it is left
    early, that waits for running evaluations, except after KeyboardInterrupt.
    """
    over, done = threading.Event(), finished if conclude is None else concluded
    ended: Queue[Future[str]] = Queue()
    runs: dict[Future[str], CampaignRun] = {}

    def halted() -> bool:
        return over.is_set() or stop()

    def one(run: CampaignRun, task: Task, shared: _TaskEvaluator) -> str:
        with shared, _claimed(campaign.folder, run, done) as mine:
            if halted():
                return StopReason.INTERRUPTED
            if not mine:
                return ELSEWHERE
            if (run.folder(campaign.folder) / FILE).exists():
                came_to_end(campaign.folder, run)  # raises if the run cannot be continued
            evaluator, first = shared.prepared()
            info = RunInfo(campaign.config(run), task.hash, versions, evaluator.environment)
            return _run(
                run.folder(campaign.folder),
                info,
                lambda store: make_engine(store, task, first, evaluator, listener or Listener(), stop=halted),
                lambda store: conclude and conclude(store, evaluator),
            )

    def begin(task: Task) -> int:
        """Queues the runs of a task that are left, and returns their number."""
        todo = [run for run in campaign.runs_of(task.name) if not done(campaign.folder, run)]
        shared = _TaskEvaluator(campaign, task, len(todo), open_evaluator)
        for run in todo:
            future = pool.submit(one, run, task, shared)
            runs[future] = run
            future.add_done_callback(ended.put)
        return len(todo)

    pool = ThreadPoolExecutor(workers, thread_name_prefix="run")
    wait = True
    try:
        for future in _as_ended(tasks, workers, begin, ended, halted):
            yield _done(campaign, runs.pop(future), future)
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
    """Begins tasks as they come and workers are free, and yields each run that ends.

    It asks for a task only when one can begin: by then a better one may have come.
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


def _done(campaign: Campaign, run: CampaignRun, future: Future[str]) -> Done:
    failure = future.exception()
    return _failed(campaign, run, failure) if failure is not None else Done(run, future.result())


@contextmanager
def _claimed(folder: Path, run: CampaignRun, done: IsDone) -> Iterator[bool]:
    """Yields whether this process has the run: no other process executes it, and none finished it meanwhile."""
    run.folder(folder).mkdir(parents=True, exist_ok=True)
    with try_lock(run.folder(folder) / CLAIM) as mine:
        yield mine and not done(folder, run)


class _TaskEvaluator:
    """The evaluator of a task: opened and prepared by the first run, closed by the last.

    Each of its `runs` enters it once.  Runs begin task by task, so few of these evaluators are open at once.
    """

    def __init__(self, campaign: Campaign, task: Task, runs: int, open_evaluator: Callable[[Task], Profiler]) -> None:
        self._campaign, self._task, self._left, self._open = campaign, task, runs, open_evaluator
        self._lock = threading.Lock()
        self._evaluator: Profiler | None = None
        self._first: Evaluation | Exception | None = None

    def prepared(self) -> tuple[Profiler, Evaluation]:
        """Returns the evaluator and its evaluation of the seed; raises what preparing raised, for every run."""
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

    def __enter__(self) -> _TaskEvaluator:
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
    """Starts or continues a run and returns how it ended.  Raises EvoError if its models do not answer any more."""
    if (folder / FILE).exists():
        store = Store.resume(folder, task_hash=info.task_hash, versions=info.versions)
    else:
        store = Store.create(folder, info)
    with store:
        if termination.fell_silent(store):
            raise EvoError(_silent("no model answered any more", folder))
        engine, llm = make_engine(store)
        outcome = engine.run()
        if llm is not None and llm.queue.ended is StopReason.SILENT:
            store.event("ended", StopReason.SILENT)
            raise EvoError(_silent(StopReason.SILENT, folder))
        if outcome.reason is not StopReason.INTERRUPTED:
            conclude(store)
    (folder / FAILURE).unlink(missing_ok=True)
    return outcome.text


def _silent(reason: str, folder: Path) -> str:
    return f"{reason}, so this run does not count for its variant; delete {folder} to repeat it"


def _failed(campaign: Campaign, run: CampaignRun, error: BaseException) -> Done:
    """Keeps the traceback in the run's folder; the same command tries again."""
    folder = run.folder(campaign.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Done(run, "failed", str(error) or type(error).__name__)
