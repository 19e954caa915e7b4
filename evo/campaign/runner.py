"""Executes the runs of a campaign: several at once, all runs of a task on one evaluator.

So processes start, warm up and measure the seed once a task, not once a run.  Several processes may share a campaign:
each claims a run before it begins, and leaves alone what another has claimed.  They begin different tasks, and share
the runs of one when no other task is left.  A process may execute halves of runs:
only propose, without an evaluator, or only evaluate what is pending.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

from evo.campaign.allocation import RunProgress
from evo.campaign.limits import CLAIM, CampaignLimits
from evo.campaign.shared import SharedEvaluator
from evo.campaign.spec import Campaign, CampaignRun, check_run
from evo.core.errors import EvoError, StoreError
from evo.core.locks import try_lock
from evo.core.records import FIRST_OPERATORS, GPU_FACTS, Evaluation, StopReason
from evo.core.settings import RunConfig
from evo.search import termination
from evo.search.assemble import make_engine
from evo.search.listener import Listener, Stop
from evo.search.profiling import Profiler
from evo.storage.best import BEST, EVIDENCE
from evo.storage.folders import FILE, keep_task
from evo.storage.queries import RunInfo, RunReader
from evo.storage.store import Store

if TYPE_CHECKING:
    from fitness.tasks.task import Task

FAILURE = "failure.txt"
ELSEWHERE = "elsewhere"
CLAIMS = "claims"  # folder of locks, one a task
LOOK_S = 0.5  # between looks for another task
IsDone = Callable[[Path, CampaignRun], bool]  # arguments: a campaign's folder and one of its runs
# Writes the result of a run that came to its own end; the last argument opens another evaluator of its task.
Conclude = Callable[[Store, Profiler, Callable[[], Profiler]], None]


@dataclass(frozen=True)
class Work:
    """What a process does with each run, and how.

    limits: of the whole campaign.  versions: of all that decides results; without an evaluator only of what proposes.
    proposals: None: the whole run; N: propose N and evaluate none; 0: evaluate what is pending, propose none.
    each: evaluations of one run at once, if it proposes nothing.
    conclude: writes the result of a run, if results are wanted.  listener: hears of models that fail.
    budget: of each run, if it grows while the campaign goes on; None: as the run was begun.
    new_versions: runs that began with other versions go on.
    """

    limits: CampaignLimits
    versions: Mapping[str, str]
    proposals: int | None = None
    each: int = 1
    stop: Stop = lambda: False
    conclude: Conclude | None = None
    listener: Listener = field(default_factory=Listener)
    budget: Callable[[CampaignRun], int] | None = None
    new_versions: bool = False

    @property
    def evaluates(self) -> bool:
        return not self.proposals

    def done(self, folder: Path, run: CampaignRun) -> bool:
        """Returns whether nothing is left to do for a run of the campaign in `folder`."""
        if self.budget is not None and _lacks(folder, run, self.budget(run)):
            return False
        if finished(folder, run):
            return self.conclude is None or (run.folder(folder) / BEST / EVIDENCE).exists()
        return self.proposals == 0 and not pending(folder, run)


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


def pending(folder: Path, run: CampaignRun) -> int:
    """Returns how many candidates of a run wait for an evaluation.

    1 if it has not begun, for its seed kernel (or PyTorch): prompts say what was measured; and 1 if it
    cannot be read: executing it says why.
    """
    if not (run.folder(folder) / FILE).exists():
        return 1
    try:
        with RunReader(run.folder(folder)) as reader:
            return len(reader.pending())
    except StoreError:
        return 1


def _lacks(folder: Path, run: CampaignRun, budget: int) -> bool:
    """Returns whether a run was begun with a smaller budget of candidates."""
    try:
        with RunReader(run.folder(folder)) as reader:
            return reader.info.config.budget < budget
    except StoreError:  # it has not begun, or executing it says why
        return False


def progress(folder: Path, run: CampaignRun) -> RunProgress | None:
    """Returns how far a run has come; None if it has not begun or cannot be read."""
    try:
        with RunReader(run.folder(folder)) as reader:
            ended = termination.ended(reader)
            over = bool(ended) and StopReason.parse(ended) is not StopReason.BUDGET and StopReason.parse(ended).final
            curve, best = [1.0], reader.best()
            for trial in (t for t in reader.trials() if t.proposal.operator not in FIRST_OPERATORS):
                gain = trial.fitness.speedup if trial.fitness and trial.fitness.ci95[0] > 1 else 1.0
                curve.append(max(curve[-1], gain))
            return RunProgress(curve, best.evaluation.attained if best is not None else None, over)
    except StoreError:
        return None


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
    open_evaluator: Callable[[Task], Profiler],
    workers: int,
    work: Work,
) -> Generator[Done, None, None]:
    """Executes the runs that are not done, `workers` at once, and yields each as it ends.

    A run that fails does not stop the others.  tasks: None if the next one is not known yet.  Close the generator: if
    it is left early, that waits for running evaluations, except after KeyboardInterrupt.
    """
    over = threading.Event()
    ended: Queue[Future[str]] = Queue()
    runs: dict[Future[str], CampaignRun] = {}

    def halted() -> bool:
        return over.is_set() or work.stop()

    def begin(task: Task) -> int:
        """Queues the runs of a task that are left, and returns their number."""
        todo = [run for run in campaign.runs_of(task.name) if not work.done(campaign.folder, run)]
        shared = _TaskEvaluator(campaign, campaign.as_set(task), len(todo), open_evaluator)
        for run in todo:
            future = pool.submit(_one, campaign, run, shared, dataclasses.replace(work, stop=halted))
            runs[future] = run
            future.add_done_callback(ended.put)
        return len(todo)

    pool = ThreadPoolExecutor(workers, thread_name_prefix="run")
    wait = True
    try:
        with ExitStack() as claims:
            for future in _as_ended(_own_first(campaign.folder, tasks, claims), workers, begin, ended, halted):
                yield _done(campaign, runs.pop(future), future)
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        over.set()
        pool.shutdown(wait=wait, cancel_futures=True)


def _own_first(folder: Path, tasks: Iterable[Task | None], claims: ExitStack) -> Iterator[Task | None]:
    """Yields tasks that no other process has begun, which `claims` keeps; then the others."""
    (folder / CLAIMS).mkdir(exist_ok=True)
    others = []
    for task in tasks:
        if task is None or claims.enter_context(try_lock(folder / CLAIMS / f"{task.name}.lock")):
            yield task
        else:
            others.append(task)
    yield from others


def _one(campaign: Campaign, run: CampaignRun, shared: _TaskEvaluator, work: Work) -> str:
    """Executes one run, if this process gets it, and returns how it ended."""
    folder = run.folder(campaign.folder)
    with shared, _claimed(campaign.folder, run, work) as mine:
        if work.stop():
            return StopReason.INTERRUPTED
        if not mine:
            return ELSEWHERE
        if (folder / FILE).exists():
            came_to_end(campaign.folder, run)  # raises if the run cannot be continued
        config = campaign.config(run)
        proposes = work.proposals != 0 and not (work.evaluates and pending(campaign.folder, run))
        # A run that is finished lacks only its result.
        if not finished(campaign.folder, run) and work.limits.stops(
            config, proposes=proposes, evaluates=work.evaluates
        ):
            return StopReason.CAMPAIGN_LIMIT
        return _run(folder, config, shared, work)


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
def _claimed(folder: Path, run: CampaignRun, work: Work) -> Iterator[bool]:
    """Yields whether this process has the run: no other process executes it, and none finished it meanwhile."""
    run.folder(folder).mkdir(parents=True, exist_ok=True)
    with try_lock(run.folder(folder) / CLAIM) as mine:
        yield mine and not work.done(folder, run)


class _TaskEvaluator:
    """The evaluator of a task: opened and prepared by the first run, closed by the last.

    Each of its `runs` enters it once.  Runs begin task by task, so few of these evaluators are open at once.
    """

    def __init__(self, campaign: Campaign, task: Task, runs: int, open_evaluator: Callable[[Task], Profiler]) -> None:
        self.task = task
        self._campaign, self._left, self._open = campaign, runs, open_evaluator
        self._lock = threading.Lock()
        self._evaluator: Profiler | None = None
        self._first: Evaluation | Exception | None = None

    def prepared(self) -> tuple[Profiler, Evaluation]:
        """Returns the evaluator and its evaluation of the seed; raises what preparing raised, for every run."""
        with self._lock:
            if self._evaluator is None:
                self._evaluator = self._open(self.task)
                if self._campaign.device == "cpu":
                    self._evaluator = SharedEvaluator(self._evaluator, self._campaign.folder, self.task.hash)
            if self._first is None:
                try:
                    self._first = self._evaluator.prepare()
                except Exception as error:
                    self._first = error
            if isinstance(self._first, Exception):
                raise self._first
            return self._evaluator, self._first

    def fresh(self) -> Profiler:
        """Returns another evaluator of the task, with processes of its own, not prepared; close it."""
        return self._open(self.task)

    def __enter__(self) -> _TaskEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._left -= 1
            if not self._left and self._evaluator is not None:
                self._evaluator.close()


def _run(folder: Path, config: RunConfig, shared: _TaskEvaluator, work: Work) -> str:
    """Starts or continues a run and returns how it ended.  Raises EvoError if its models do not answer any more."""
    evaluator, first = shared.prepared() if work.evaluates else (None, None)
    environment = {} if evaluator is None else evaluator.environment
    with (
        work.limits.account(folder, work.stop) as account,
        _open_store(folder, RunInfo(config, shared.task.hash, work.versions, environment), shared.task, work) as store,
    ):
        engine, llm = make_engine(
            store, shared.task, first, evaluator, work.listener, stop=work.stop, proposals=work.proposals,
            account=account, workers=work.each if work.proposals == 0 else None,
        )  # fmt: skip
        outcome = engine.run()
        if llm is not None and llm.queue.ended is StopReason.SILENT:
            raise EvoError(f"{StopReason.SILENT}; the same command continues this run once one does")
        if work.conclude is not None and evaluator is not None and termination.came_to_end(store):
            work.conclude(store, evaluator, shared.fresh)
    (folder / FAILURE).unlink(missing_ok=True)
    return outcome.text


def _open_store(folder: Path, info: RunInfo, task: Task, work: Work) -> Store:
    """Returns the store of a run, new or to go on with.

    A run that was never evaluated gets the device and the versions of the first process that evaluates it.
    """
    if not (folder / FILE).exists():
        store = Store.create(folder, info)
        keep_task(folder, task.folder)
        return store
    with RunReader(folder) as reader:
        then = reader.info
    evaluates, evaluated = bool(info.environment), bool(then.environment)
    own = then.versions.keys() & info.versions.keys()
    going = info.versions if evaluates and evaluated else {**then.versions, **{n: info.versions[n] for n in own}}
    store = Store.open(folder, task_hash=info.task_hash, versions=going, new_versions=work.new_versions)
    store.goes_on(dataclasses.replace(info.config, triton=then.config.triton), going)
    if evaluates and not evaluated:
        # Not its machine: prompts that were made before said what the target's name stands for.
        environment = {name: value for name, value in info.environment.items() if name != GPU_FACTS}
        store.set_evaluator(info.versions, environment)
    return store


def _failed(campaign: Campaign, run: CampaignRun, error: BaseException) -> Done:
    """Keeps the traceback in the run's folder; the same command tries again."""
    folder = run.folder(campaign.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Done(run, "failed", str(error) or type(error).__name__)
