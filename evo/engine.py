"""The loop of a search: ask, store, evaluate, score, store, tell.

Live and resumed runs go through the same `absorb`: what is in the store is replayed, what was proposed but not finished
is evaluated first, then the search goes on.  With one worker evaluation is serial and a run is a function of its seed.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from evo.archive import Archive
from evo.budget import Budget
from evo.config import RunConfig
from evo.records import Candidate, Evaluation, Fitness, Proposal, Trial, Verdict
from evo.scheduler import Scheduler
from evo.store import Store
from operators.base import Operator, Screen

Score = Callable[[Evaluation], Fitness | None]


class Evaluator(Protocol):
    """Judges candidates.  `evaluate` and `screen` are called from several threads at once, the rest from one."""

    @property
    def environment(self) -> Mapping[str, Any]: ...

    def prepare(self) -> Evaluation:
        """Evaluates the seed, once, before anything else.  Raises TaskError where the task is at fault."""
        ...

    def evaluate(self, candidate: Candidate, *, seed: int, known: Mapping[str, str]) -> Evaluation:
        """`known`: id of the candidate by the hash of its plan, for all OK ones so far (a live view)."""
        ...

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """Estimated speedup of each source, None where it does not compile."""
        ...

    def close(self) -> None: ...


class Observer(Protocol):
    """Watches a run (the terminal does)."""

    def absorbed(self, trial: Trial, *, replayed: bool) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `reason`: "budget spent", "search space exhausted", "interrupted", and, where only a part was asked for: "proposed",
    "all of the budget is proposed", "nothing new can be made of what is known", "nothing is pending".
    """

    reason: str
    seed: Trial | None  # None where an interrupt came before the first trial
    best: Trial | None
    spent: int  # candidates evaluated, in this process or earlier
    proposed: int = 0  # candidates proposed in this process


class Engine:
    """One run.  `run` may be called once; `stop` is asked between steps.

    The two halves of a search may run in processes and on machines of their own.  `evaluator` None: nothing is
    evaluated (nor screened), what is proposed stays pending.  `proposals`: the most to make here; None: as the budget
    allows; 0: what is pending is evaluated, nothing else.
    """

    def __init__(
        self,
        store: Store,
        task_seed: Evaluation | None,
        seed_source: str,
        evaluator: Evaluator | None,
        score: Score,
        operators: Mapping[str, Operator],
        observers: Sequence[Observer] = (),
        stop: Callable[[], bool] = lambda: False,
        proposals: int | None = None,
    ) -> None:
        if (evaluator is None) != (task_seed is None):
            raise ValueError("expected an evaluator with its evaluation of the seed, or neither")
        config: RunConfig = store.info.config
        self._store, self._evaluator, self._score = store, evaluator, score
        self._task_seed, self._seed = task_seed, Candidate(seed_source)
        self._observers, self._stop = observers, stop
        self._archive = Archive()
        self._budget = Budget(config.budget)
        self._proposals, self._proposed = proposals, 0
        screen = stored_screen(store, self._screen) if evaluator is not None else None
        self._scheduler = Scheduler(config, operators, self._archive, screen)
        self._pool = _Pool(self._evaluate, config.workers)

    def run(self) -> Outcome:
        """Searches until the budget is spent, nothing new can be made, or `stop` says so."""
        with self._pool:
            for trial in self._store.trials():
                self._scheduler.register(trial.proposal)
                self._absorb(trial, replayed=True)
            for proposal in self._store.pending():
                self._submit(proposal)
            if self._scheduler.next_index == 0:
                self._propose(self._scheduler.first(self._seed))
            if self._evaluator is None and self._archive.seed is None:
                self._scheduler.assume_seed(self._seed)
            reason = self._search()
        self._store.event("ended", reason)
        return Outcome(reason, self._archive.seed, self._archive.best, self._budget.spent, self._proposed)

    def _search(self) -> str:
        while True:
            self._fill_pool()
            if not self._pool.busy:
                break
            done = self._pool.next_done()
            if done is not None:
                self._finish(*done)
        return self._reason()

    def _reason(self) -> str:
        if self._budget.spent >= self._budget.total:
            return "budget spent"
        if self._stop():
            return "interrupted"
        if self._evaluator is not None:
            return "search space exhausted" if self._proposals is None else "nothing is pending"
        if self._proposed == self._proposals:
            return "proposed"
        return "nothing new can be made of what is known" if self._budget.left() else "all of the budget is proposed"

    def _fill_pool(self) -> None:
        """Asks for as much as the workers can take, or as can be made of what is known now."""
        while self._pool.wants_more() and self._budget.left() and self._may_propose() and not self._stop():
            try:
                proposal = self._scheduler.ask()
            except _Stopped:  # asking changes nothing, so a question can be dropped
                break
            if proposal is None:
                break
            self._propose(proposal)
            self._proposed += 1

    def _may_propose(self) -> bool:
        return self._proposals is None or self._proposed < self._proposals

    def _propose(self, proposal: Proposal) -> None:
        self._store.proposed(proposal)
        self._submit(proposal)

    def _submit(self, proposal: Proposal) -> None:
        self._scheduler.register(proposal)
        self._budget.reserve(proposal)
        if self._evaluator is None:
            return
        if self._task_seed is not None and proposal.index == 0:  # known already; first, as others may descend from it
            self._finish(proposal, self._task_seed)
        else:
            self._pool.submit(proposal)

    def _finish(self, proposal: Proposal, evaluation: Evaluation) -> None:
        trial = Trial(proposal, evaluation, self._score(evaluation))
        self._store.finished(trial)
        self._absorb(trial, replayed=False)

    def _absorb(self, trial: Trial, *, replayed: bool) -> None:
        self._budget.spend(trial)
        self._scheduler.tell(trial, self._archive.add(trial))
        for observer in self._observers:
            observer.absorbed(trial, replayed=replayed)

    def _evaluate(self, proposal: Proposal) -> Evaluation | None:
        """Runs in a worker.  None where the run is to stop: the proposal stays pending and is evaluated on resume."""
        if self._stop():
            return None
        assert self._evaluator is not None  # nothing is submitted without one
        for _ in range(2):  # a failing evaluator is given a second chance, then its failure is a fact
            evaluation = self._evaluator.evaluate(proposal.candidate, seed=proposal.seed, known=self._scheduler.known)
            if evaluation.verdict is not Verdict.INFRASTRUCTURE:
                break
        return evaluation

    def _screen(self, sources: Sequence[str]) -> list[float | None]:
        """One source a worker: an operator asks for several, and the driver would wait for one after the other."""

        def one(source: str) -> float | None:
            if self._stop():
                raise _Stopped
            assert self._evaluator is not None  # nothing is screened without one
            return self._evaluator.screen([source])[0]

        return self._pool.map(one, sources)


class _Stopped(Exception):
    """The run is to stop; no more screening."""


class _Pool:
    """Threads that evaluate, and the queue their results come back through, in the order they are done."""

    def __init__(self, evaluate: Callable[[Proposal], Evaluation | None], workers: int) -> None:
        self._evaluate = evaluate
        # One more than there are workers waits, so that none is idle while the next proposal is made.  A single worker
        # gets none: each proposal is to know all results before it.
        self._room = workers + (workers > 1)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="evaluate")
        self._done: queue.SimpleQueue[tuple[Proposal, Future[Evaluation | None]]] = queue.SimpleQueue()
        self.busy = 0

    def wants_more(self) -> bool:
        return self.busy < self._room

    def submit(self, proposal: Proposal) -> None:
        self.busy += 1
        future = self._executor.submit(self._evaluate, proposal)
        future.add_done_callback(lambda f: self._done.put((proposal, f)))

    def map(self, function: Callable[[str], float | None], sources: Sequence[str]) -> list[float | None]:
        """The results in the order of `sources`."""
        return list(self._executor.map(function, sources))

    def next_done(self) -> tuple[Proposal, Evaluation] | None:
        """Waits for a result; None where the evaluation was dropped.  Raises what the evaluator raised."""
        proposal, future = self._done.get()
        self.busy -= 1
        evaluation = future.result()
        return None if evaluation is None else (proposal, evaluation)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        # Not waiting: after an error or a second Ctrl-C the caller closes the evaluator, which ends what still runs.
        self._executor.shutdown(wait=False, cancel_futures=True)


def stored_screen(store: Store, screen: Screen) -> Screen:
    """`screen`, but asking the store first and telling it afterwards: no estimate is paid for twice, kills included."""

    def ask(sources: Sequence[str]) -> list[float | None]:
        ids = [Candidate(source).id for source in sources]
        known = store.screened(ids)
        new = {i: source for i, source in zip(ids, sources, strict=True) if i not in known}
        if new:
            fresh = dict(zip(new, screen(list(new.values())), strict=True))
            store.screens(fresh)
            known |= fresh
        return [known[i] for i in ids]

    return ask
