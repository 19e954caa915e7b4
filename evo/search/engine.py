"""The loop of a search: ask, store, evaluate, score, store, tell.

Live and resumed runs go through the same `absorb`: what is in the store is replayed, what was proposed but not finished
is evaluated first, then the search goes on.  With one worker (and one question at a time) all is serial, and a run is a
function of its seed and of the answers it got.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from evo.core.records import (
    Candidate,
    Certificate,
    Evaluation,
    Fitness,
    OperatorRef,
    Proposal,
    StopReason,
    Trial,
    Verdict,
)
from evo.core.settings import RunConfig
from evo.llm.prompt_scheduler import PromptScheduler
from evo.llm.queue import ModelQueue
from evo.search.archive import Archive
from evo.search.budget import Budget
from evo.search.scheduler import Scheduler
from evo.storage.model_calls import Call, Question
from evo.storage.store import Store
from operators.base import Operator, Screen

Score = Callable[[Evaluation], Fitness | None]
# How soon Ctrl-C is noticed while models, or whoever reads a mailbox, think.
STOP_POLL_S = 0.5


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

    def plan_hash(self, source: str) -> str:
        """Equal for sources that are the same work on the device; "" of one that cannot be compiled."""
        ...

    def certify(self, source: str, *, seed: int) -> Certificate:
        """Whether the Python of a source that was found OK does on a GPU what was measured; after `prepare`."""
        ...

    def close(self) -> None: ...


class Observer(Protocol):
    """Watches a run (the terminal does)."""

    def absorbed(self, trial: Trial, *, replayed: bool) -> None: ...


@dataclass(frozen=True)
class Llm:
    """The models' side of a run: what is asked, and where."""

    asker: PromptScheduler
    lane: ModelQueue


@dataclass(frozen=True)
class EngineOutcome:
    """How a run ended; `text` says it in words, those of the strategy if it ended the run."""

    reason: StopReason
    text: str
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
        llm: Llm | None = None,
    ) -> None:
        if (evaluator is None) != (task_seed is None):
            raise ValueError("expected an evaluator with its evaluation of the seed, or neither")
        config: RunConfig = store.info.config
        self._store, self._evaluator, self._score = store, evaluator, score
        self._task_seed, self._seed = task_seed, Candidate(seed_source)
        self._observers, self._stop = observers, stop
        self._archive = Archive()
        self._budget = Budget(config.budget, config.gpu_seconds)
        self._proposals, self._proposed = proposals, 0
        screen = stored_screen(store, self._screen) if evaluator is not None else None
        self._lane = llm.lane if llm else None
        self._asker = llm.asker if llm else None
        # Where several are on their way, compiling drafts here would keep the others waiting.
        twin = self._twin if evaluator is not None and config.serial else None
        self._scheduler = Scheduler(config, operators, self._archive, screen, self._asker, twin)
        self._inbox: queue.SimpleQueue[_Done | Call] = queue.SimpleQueue()
        self._pool = _Pool(self._evaluate, config.workers, self._inbox)
        self._serial = config.serial
        self._arms = {
            asks: [o for o in config.operators if OperatorRef.parse(o).asks is asks] for asks in (False, True)
        }

    def run(self) -> EngineOutcome:
        """Searches until the budget is spent, nothing new can be made, or `stop` says so."""
        with self._pool:
            try:
                self._take_up()
                reason = self._search()
            finally:
                if self._lane is not None:
                    self._lane.close()
        text = self._scheduler.ended if reason is StopReason.STRATEGY else str(reason)
        self._store.event("ended", text)
        return EngineOutcome(reason, text, self._archive.seed, self._archive.best, self._budget.spent, self._proposed)

    def _take_up(self) -> None:
        """What an earlier process left, or the beginning."""
        for trial in self._store.trials():
            self._scheduler.register(trial.proposal)
            self._absorb(trial, replayed=True)
        for proposal in self._store.pending():
            self._submit(proposal)
        if self._scheduler.next_index == 0:
            self._propose(self._scheduler.first(self._seed))
        if self._evaluator is None and self._archive.seed is None:
            self._scheduler.assume_seed(self._seed)
        if self._lane is not None and self._asker is not None and self._proposals != 0:
            for question in self._lane.start(self._inbox.put):
                self._asker.asked(question)

    def _search(self) -> StopReason:
        while True:
            self._fill()
            if not self._pool.busy and not self._asking:
                break
            done = self._next()
            if done is None:
                break
            if isinstance(done, Call):
                self._answered(done)
            else:
                evaluation = self._pool.result(done)
                if evaluation is not None:
                    self._finish(done.proposal, evaluation)
        return self._reason()

    def _next(self) -> _Done | Call | None:
        """Waits for what is done next.  None where only models are waited for and the run is to stop."""
        while True:
            try:
                return self._inbox.get(timeout=STOP_POLL_S if self._asking else None)
            except queue.Empty:
                if self._stop() and not self._pool.busy:
                    return None

    @property
    def _asking(self) -> int:
        """Questions to models whose outcome was not taken in yet."""
        return self._lane.busy if self._lane else 0

    def _reason(self) -> StopReason:
        if self._budget.over:
            return StopReason.BUDGET
        if self._stop():
            return StopReason.INTERRUPTED
        if self._scheduler.ended:
            return StopReason.STRATEGY
        if self._lane is not None and self._lane.ended:
            return self._lane.ended
        if self._evaluator is not None:
            return StopReason.EXHAUSTED if self._proposals is None else StopReason.NOTHING_PENDING
        if self._proposed == self._proposals:
            return StopReason.PROPOSED
        return StopReason.NOTHING_NEW if self._budget.left() else StopReason.ALL_PROPOSED

    # --- asking ------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Asks for as much as models and workers can take, or as can be made of what is known now.

        Models come first: they take longest, and what they need is a parent, not a worker.
        """
        if self._evaluator is None:
            ways: Sequence[Callable[[], Sequence[str]]] = (self._any_arms,)
        else:
            ways = (self._all_arms,) if self._serial else (self._model_arms, self._rule_arms)
        for arms in ways:
            while self._may_propose() and not self._stop():
                among = arms()
                if not among or not self._ask(among):
                    break

    def _may_propose(self) -> bool:
        """Each question in flight is to be a proposal."""
        most = self._budget.left()
        if self._proposals is not None:
            most = min(most, self._proposals - self._proposed)
        return most > self._asking

    def _all_arms(self) -> Sequence[str]:
        return () if self._pool.busy or self._asking else (*self._rule_arms(), *self._model_arms())

    def _any_arms(self) -> Sequence[str]:
        """Where nothing is evaluated no worker slows the rules down: they wait for models, and get their share only."""
        models = self._model_arms()
        return () if self._asking and not models else (*self._rule_arms(), *models)

    def _rule_arms(self) -> Sequence[str]:
        return self._arms[False] if self._pool.wants_more() else ()

    def _model_arms(self) -> Sequence[str]:
        """Answers that wait for a worker count as in flight: more of them would make parents staler, nothing faster."""
        if self._lane is None or self._asking + self._pool.waiting >= self._lane.slots:
            return ()
        free = self._lane.free()
        return [arm for arm in self._arms[True] if OperatorRef.parse(arm).model in free]

    def _ask(self, among: Sequence[str]) -> bool:
        """Whether it is worth asking again at once."""
        try:
            made = self._scheduler.ask(among)
        except _Stopped:  # asking changes nothing, so a question can be dropped
            return False
        if isinstance(made, Question):
            assert self._lane is not None and self._asker is not None  # without them there are no such arms
            if not self._lane.submit(made):
                return not self._asking  # the lane has struck this model off its list; another may be cheaper
            self._asker.asked(made)
        elif made is not None:
            self._propose(made)
            self._proposed += 1
        return made is not None

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

    # --- taking in ---------------------------------------------------------------------------------------------------

    def _answered(self, call: Call) -> None:
        assert self._lane is not None and self._asker is not None  # who else sends calls
        self._lane.collected(call)
        self._asker.collected(call.question)
        if call.fault is not None:
            raise call.fault
        if call.error:
            self._store.event("llm", f"call {call.number}, {call.question.operator}: {call.error}")
            return
        self._proposed += 1
        made = self._scheduler.read(call)
        if made.evaluation is None:
            self._store.proposed(made.proposal, call=call.number, spans=made.spans)
            self._submit(made.proposal)
        else:
            trial = Trial(made.proposal, made.evaluation)
            self._store.proposed_and_finished(trial, call=call.number)
            self._scheduler.register(made.proposal)
            self._absorb(trial, replayed=False)

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

    def _twin(self, source: str, plans: Container[str]) -> bool:
        if self._stop():
            raise _Stopped
        assert self._evaluator is not None  # nothing is compiled without one
        return self._evaluator.plan_hash(source) in plans

    def _screen(self, sources: Sequence[str]) -> list[float | None]:
        """One source a worker: an operator asks for several, and the driver would wait for one after the other."""

        def one(source: str) -> float | None:
            if self._stop():
                raise _Stopped
            assert self._evaluator is not None  # nothing is screened without one
            return self._evaluator.screen([source])[0]

        return self._pool.map(one, sources)


class _Stopped(Exception):
    """The run is to stop; nothing more is compiled for a proposal."""


@dataclass(frozen=True)
class _Done:
    """An evaluation that ended."""

    proposal: Proposal
    future: Future[Evaluation | None]


class _Pool:
    """Threads that evaluate; what is done goes to `inbox`, in the order it is done."""

    def __init__(
        self,
        evaluate: Callable[[Proposal], Evaluation | None],
        workers: int,
        inbox: queue.SimpleQueue[_Done | Call],
    ) -> None:
        self._evaluate = evaluate
        # One more than there are workers waits, so that none is idle while the next proposal is made.  A single worker
        # gets none: each proposal is to know all results before it.
        self._room = workers + (workers > 1)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="evaluate")
        self._workers = workers
        self._inbox = inbox
        self.busy = 0

    @property
    def waiting(self) -> int:
        """Evaluations that no worker has taken up."""
        return max(0, self.busy - self._workers)

    def wants_more(self) -> bool:
        return self.busy < self._room

    def submit(self, proposal: Proposal) -> None:
        self.busy += 1
        future = self._executor.submit(self._evaluate, proposal)
        future.add_done_callback(lambda f: self._inbox.put(_Done(proposal, f)))

    def map(self, function: Callable[[str], float | None], sources: Sequence[str]) -> list[float | None]:
        """The results in the order of `sources`."""
        return list(self._executor.map(function, sources))

    def result(self, done: _Done) -> Evaluation | None:
        """None where the evaluation was dropped.  Raises what the evaluator raised."""
        self.busy -= 1
        return done.future.result()

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
