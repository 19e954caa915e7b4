"""The work of a service: accepts evaluations, has worker threads do them, and says how they ended.

Evaluators come from a factory (`evo.search.evaluators`): one a task, opened when it is first needed and kept.  All
facts are in the store (`evo.storage.requests`); this process keeps only what waits and what runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from evo.core.errors import EvoError, ServiceError, StoreError, TaskError
from evo.core.records import Candidate, Evaluation, Profile, Verdict, evaluation_to_json
from evo.core.text import short
from evo.service.queue import FairQueue
from evo.storage.requests import CANCELLED, DONE, FAILED, QUEUED, Caller, Job, RequestStore

if TYPE_CHECKING:
    from evo.search.profiling import Profiler
    from fitness.tasks.task import Task

MOST_BATCH = 256  # sources of one request
MOST_OPEN = 8  # evaluators that stay open: each is a few processes with torch
RUNNING = "running"  # a state that only this process knows: in the store it is still queued


class Factory(Protocol):
    """Opens evaluators that are used at the same time; `evo.search.evaluators.Devices.open_factory` returns one."""

    def open(self, task: Task) -> Profiler: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Status:
    """How an evaluation is doing.  `execution_s` is None until it runs."""

    id: str
    state: str  # queued, running, done, failed or cancelled
    queue_s: float
    execution_s: float | None = None
    evaluation: str = ""  # JSON, if it is done
    error: str = ""  # if it failed

    @property
    def over(self) -> bool:
        return self.state not in (QUEUED, RUNNING)


@dataclass
class Settings:
    """Limits of a service."""

    workers: int = 1  # evaluations at once
    queue: int = 4096  # evaluations of one token that wait
    seed: int = 0  # of the random inputs
    open_tasks: int = MOST_OPEN


@dataclass
class _Pending:
    """An accepted evaluation that is not finished.  started: when a worker took it, in seconds since 1970."""

    job: Job
    accepted: float
    started: float | None = None


@dataclass
class Metrics:
    """What the service counts; `evo.service.app` shows it to Prometheus.  Called from any thread."""

    ended: Callable[[str], None] = lambda verdict: None
    queued_s: Callable[[float], None] = lambda seconds: None
    executed_s: Callable[[float], None] = lambda seconds: None


class Service:
    """Evaluates for many clients.  Methods belong to the event loop that called `start`, if not said otherwise."""

    def __init__(
        self,
        store: RequestStore,
        factory: Factory,
        load: Callable[[str], Task],
        settings: Settings | None = None,
    ) -> None:
        """factory: opens evaluators, and is closed with the service; load: returns the task of a hash."""
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self._store, self._seed = store, self.settings.seed
        self._evaluators = _Evaluators(factory, load, self.settings.open_tasks)
        self._queue = FairQueue()
        self._pending: dict[str, _Pending] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mean_s = 1.0  # of recent evaluations
        self.draining = False

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queues what was accepted before and starts the workers; in the event loop."""
        self._loop = asyncio.get_running_loop()
        for job in self._store.queued():
            found = self._store.find(job.id)
            assert found is not None  # it was just listed
            self._enqueue(job, found.accepted)
        for number in range(self.settings.workers):
            thread = threading.Thread(target=self._work, name=f"evaluate-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def drain(self) -> None:
        """Starts no more evaluations and accepts none; what runs is finished.  May be called from a signal handler."""
        self.draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_queued)

    async def close(self) -> None:
        """Waits for what runs, then ends the evaluators.  What waits stays in the store for the next start."""
        self.drain()
        self._queue.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        await asyncio.to_thread(self._evaluators.close)
        self._store.close()

    def _wake_queued(self) -> None:
        """Answers those who wait for what does not run: it will not run any more."""
        self._queue.close()
        for each in [each for each in self._waiters if not self._is_running(each)]:
            self._wake(each)

    def _is_running(self, evaluation: str) -> bool:
        pending = self._pending.get(evaluation)
        return pending is not None and pending.started is not None

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(self, task_hash: str, sources: Sequence[str], caller: Caller) -> list[str]:
        """Accepts evaluations and returns their ids; they are stored when this returns.

        The same task and source is the same evaluation.  It runs again only if it was cancelled or failed, or if evo
        and not the candidate was at fault.  Raises ServiceError if there is no room; then none is accepted.
        """
        if self.draining:
            raise ServiceError("the service is stopping; send the same request again when it is back", 503, 5)
        for source in sources:
            check_text("source", source)
        wanted = {evaluation_id(task_hash, source): source for source in sources}
        new = [each for each in wanted if self._is_to_run(each)]
        room = self.settings.queue - self._queue.waiting(caller.token)
        if len(new) > room:
            raise ServiceError(
                f"the queue is full: {self.settings.queue} evaluations of a client may wait, there is room for "
                f"{max(room, 0)} and these are {len(new)}; send the same request again later",
                429,
                min(30, max(1, math.ceil(len(new) * self._mean_s / self.settings.workers))),
            )
        now = time.time()
        jobs = [Job(each, task_hash, caller) for each in new]
        if jobs:
            self._store.accept(jobs, [wanted[each] for each in new], now)
        joined = [each for each in wanted if each not in set(new) and each in self._pending]
        if joined:
            self._store.asked(joined, caller)
        for job in jobs:
            self._enqueue(job, now)
        return [evaluation_id(task_hash, source) for source in sources]

    def _is_to_run(self, evaluation: str) -> bool:
        if evaluation in self._pending:
            return False
        found = self._store.find(evaluation)
        if found is None or found.state in (FAILED, CANCELLED):
            return True
        return found.state == DONE and found.verdict == Verdict.INFRASTRUCTURE

    def _enqueue(self, job: Job, accepted: float) -> None:
        self._pending[job.id] = _Pending(job, accepted)
        self._queue.put(job)

    def status(self, evaluation: str) -> Status:
        """How an evaluation is doing.  Raises ServiceError (404) for an unknown id."""
        now, pending = time.time(), self._pending.get(evaluation)
        if pending is not None:
            started = pending.started
            if started is None:
                return Status(evaluation, QUEUED, now - pending.accepted)
            return Status(evaluation, RUNNING, started - pending.accepted, now - started)
        found = self._store.find(evaluation)
        if found is None:
            raise ServiceError(
                f"no evaluation {short(evaluation[:80])!r}; POST /v1/evaluations returns the ids of those there are",
                404,
            )
        ended = found.ended or now
        started = found.started if found.started is not None else ended
        execution_s = None if found.started is None else ended - started
        return Status(
            evaluation, found.state, max(0.0, started - found.accepted), execution_s, found.evaluation, found.error
        )

    async def wait(self, evaluation: str, seconds: float) -> Status:
        """The status as soon as the evaluation is over, and after that many seconds at the latest."""
        if seconds > 0 and evaluation in self._pending and not (self.draining and not self._is_running(evaluation)):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(evaluation, set()).add(future)
            try:
                await asyncio.wait_for(future, seconds)
            except TimeoutError:
                pass
            finally:
                waiting = self._waiters.get(evaluation, set())
                waiting.discard(future)
                if not waiting:
                    self._waiters.pop(evaluation, None)
        return self.status(evaluation)

    def cancel(self, evaluation: str, caller: Caller) -> Status:
        """Cancels an evaluation that waits; one that runs goes on, and so does one that others asked for too."""
        status = self.status(evaluation)
        others = [asker for asker in self._store.askers(evaluation) if asker != caller]
        if status.state == QUEUED and not others and self._queue.remove(evaluation):
            self._store.finish(evaluation, CANCELLED, started=None, ended=time.time())
            self._pending.pop(evaluation, None)
            self._wake(evaluation)
        return self.status(evaluation)

    async def profile(self, task_hash: str, source: str, evaluation: Evaluation) -> Profile:
        """What limits a candidate that is ok.  Raises EvoError if it cannot be profiled."""

        def run() -> Profile:
            with self._evaluators.use(task_hash) as evaluator:
                return evaluator.profile(Candidate(source), evaluation)

        return await asyncio.to_thread(run)

    @property
    def waiting(self) -> int:
        """The number of evaluations that wait."""
        return self._queue.waiting()

    @property
    def running(self) -> int:
        """The number of evaluations that run."""
        return sum(pending.started is not None for pending in list(self._pending.values()))

    @property
    def listening(self) -> int:
        """The number of requests that wait for the end of an evaluation."""
        return sum(map(len, self._waiters.values()))

    # --- workers -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._queue.take(self._evaluators.opening)) is not None:
            pending = self._pending[job.id]
            ended = self._run(job, pending)
            self._queue.wake()  # the task of the job is ready now, for those who wait for it
            if ended is not None:
                self._end(job, pending.started or time.time(), **ended)

    def _run(self, job: Job, pending: _Pending) -> dict[str, str] | None:
        """Evaluates, and returns the arguments of `_end`; None if the service stops before it has begun."""
        try:
            source = self._store.source(job.id)
            with self._evaluators.use(job.task) as evaluator:
                if self.draining:
                    return None  # it stays in the store
                pending.started = time.time()
                self.metrics.queued_s(pending.started - pending.accepted)
                found = evaluator.evaluate(Candidate(source), seed=self._seed, known={})
                self.metrics.executed_s(time.time() - pending.started)
            return {"state": DONE, "result": evaluation_to_json(found), "verdict": found.verdict.value}
        except EvoError as error:
            return {"state": FAILED, "error": short(str(error)), "verdict": ""}
        except Exception as error:  # a fault of evo's: one evaluation fails, the service goes on
            traceback.print_exc(file=sys.stderr)
            return {"state": FAILED, "error": short(f"evo failed: {type(error).__name__}: {error}"), "verdict": ""}

    def _end(self, job: Job, started: float, state: str, verdict: str, result: str = "", error: str = "") -> None:
        ended = time.time()
        while True:
            try:
                self._store.finish(
                    job.id, state, verdict=verdict, result=result, error=error, started=started, ended=ended
                )
                break
            except StoreError as problem:  # a full disk: a result that was paid for waits until it can be stored
                print(f"evo: {problem}", file=sys.stderr, flush=True)
                if self.draining:
                    return
                time.sleep(1)
        self._mean_s += 0.1 * (ended - started - self._mean_s)
        self._pending.pop(job.id, None)
        self.metrics.ended(verdict or FAILED)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._wake, job.id)

    def _wake(self, evaluation: str) -> None:
        for future in self._waiters.pop(evaluation, set()):
            if not future.done():
                future.set_result(None)


def check_text(place: str, text: str) -> None:
    """Raises ServiceError (422) for text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ServiceError(f"{place}: expected Unicode text, got half a character at {error.start}", 422) from None


def evaluation_id(task_hash: str, source: str) -> str:
    """32 hex digits of a task and a source: equal for equal requests."""
    return hashlib.sha256(f"{task_hash}\0{source}".encode()).hexdigest()[:32]


# --- evaluators ------------------------------------------------------------------------------------------------------


@dataclass
class _Open:
    evaluator: Profiler
    users: int = 0


@dataclass
class _Evaluators:
    """The open evaluators, one a task; used by several threads.  Those used least lately are closed beyond `most`."""

    factory: Factory
    load: Callable[[str], Task]
    most: int
    opening: set[str] = field(default_factory=set)  # hashes of tasks whose evaluator is being opened
    _open: OrderedDict[str, _Open] = field(default_factory=OrderedDict)
    _task_errors: dict[str, str] = field(default_factory=dict)  # why a task cannot be used
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opening_one: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def use(self, task_hash: str) -> Iterator[Profiler]:
        """The evaluator of a task, opened if need be.  Raises TaskError if the task is at fault."""
        found = self._enter(task_hash)
        try:
            yield found.evaluator
        finally:
            with self._lock:
                found.users -= 1

    def _enter(self, task_hash: str) -> _Open:
        with self._lock:
            if (known := self._known(task_hash)) is not None:
                return known
            self.opening.add(task_hash)
        try:
            with self._opening_one:
                with self._lock:
                    if (known := self._known(task_hash)) is not None:
                        return known
                evaluator = self._prepared(task_hash)
                with self._lock:
                    found = self._open[task_hash] = _Open(evaluator, users=1)
                self._close_idle()
                return found
        finally:
            with self._lock:
                self.opening.discard(task_hash)

    def _known(self, task_hash: str) -> _Open | None:
        """The open evaluator with one user more, None if it is not open.  Raises TaskError for a task at fault."""
        if task_hash in self._task_errors:
            raise TaskError(self._task_errors[task_hash])
        found = self._open.get(task_hash)
        if found is not None:
            self._open.move_to_end(task_hash)
            found.users += 1
        return found

    def _prepared(self, task_hash: str) -> Profiler:
        try:
            evaluator = self.factory.open(self.load(task_hash))
            try:
                evaluator.prepare()
            except BaseException:
                evaluator.close()
                raise
        except TaskError as error:
            with self._lock:
                self._task_errors[task_hash] = str(error)
            raise
        return evaluator

    def _close_idle(self) -> None:
        with self._lock:
            idle = [task_hash for task_hash, found in self._open.items() if not found.users]
            closing = [self._open.pop(task_hash) for task_hash in idle[: max(0, len(self._open) - self.most)]]
        for found in closing:
            found.evaluator.close()

    def close(self) -> None:
        with self._lock:
            closing = list(self._open.values())
            self._open.clear()
        for found in closing:
            found.evaluator.close()
        self.factory.close()
