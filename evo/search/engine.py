"""Runs the loop of a search: ask, store, evaluate, score, store, tell.

Live and resumed runs share `absorb`.  A resumed run replays its store, evaluates proposals that are not finished, and
then continues the search.  With one worker (and one question at a time) all is serial, and a run is a function of its
seed and of the answers it got.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from evo.core.records import (
    Bar,
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
from evo.llm.prompt_scheduler import PromptScheduler
from evo.llm.queue import ModelQueue
from evo.search.archive import Archive
from evo.search.budget import MOST_GPU_S, Budget, gpu_seconds
from evo.search.scheduler import Scheduler
from evo.search.termination import attained
from evo.storage.ledger import CANDIDATES, GPU_SECONDS, Account
from evo.storage.model_calls import ModelCall, Question
from evo.storage.store import Store
from operators.base import Operator, Screen

Score = Callable[[Evaluation], Fitness | None]
_ONE = {CANDIDATES: 1.0}
_LONGEST = {GPU_SECONDS: MOST_GPU_S}
# How soon Ctrl-C is noticed while a model, or a person who answers by mailbox, thinks.
STOP_POLL_S = 0.5


class EvaluatorLike(Protocol):
    """Evaluates candidates.  Several threads call `evaluate` and `screen` at once; one thread calls the rest."""

    @property
    def environment(self) -> Mapping[str, Any]: ...

    def prepare(self) -> Evaluation:
        """Evaluates the seed, once, before anything else.  Raises TaskError if the task is at fault."""
        ...

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        """Evaluates a candidate.

        known: plan hash -> id of each OK candidate so far (a live view); bar: if a first look shows that it is above
        the candidate, the verdict is SLOW; None: the candidate is evaluated all the way.
        """
        ...

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        """Returns the estimated speedup of each source, None if it does not compile."""
        ...

    def plan_hash(self, source: str) -> str:
        """Returns a hash that is equal for sources with the same work on the device; "" if one does not compile."""
        ...

    def certify(self, source: str, *, seed: int) -> Certificate:
        """Tests whether the Python of an OK source does on a GPU what was measured; after `prepare`."""
        ...

    def close(self) -> None: ...


class Observer(Protocol):
    """Watches a run (the terminal does)."""

    def absorbed(self, trial: Trial, *, replayed: bool) -> None: ...


@dataclass(frozen=True)
class Llm:
    """The models' side of a run: the scheduler of prompts, and the queue that asks the models."""

    prompts: PromptScheduler
    queue: ModelQueue


@dataclass(frozen=True)
class EngineOutcome:
    """The outcome of a run; `text` says in words how it ended, those of the strategy if it ended the run."""

    reason: StopReason
    text: str
    seed: Trial | None  # None if an interrupt came before the first trial
    best: Trial | None
    spent: int  # candidates evaluated, in this process or earlier
    proposed: int = 0  # candidates proposed in this process


class Engine:
    """One run.  `run` may be called once; `stop` is asked between steps.

    The two halves of a search may run in different processes and on different machines.  `evaluator` None: nothing is
    evaluated or screened, and proposals stay pending.  `proposals`: the most to make here; None: as the budget allows;
    0: only what is pending is evaluated.  `account`: of a run of a campaign, which ends if the campaign's limits are
    reached, or if its models answer no more: going on by rules alone would make it another search.  `workers`:
    evaluations at once if nothing is proposed here; None: as the settings say.
    """

    def __init__(
        self,
        store: Store,
        task_seed: Evaluation | None,
        seed_source: str,
        evaluator: EvaluatorLike | None,
        score: Score,
        operators: Mapping[str, Operator],
        observers: Sequence[Observer] = (),
        stop: Callable[[], bool] = lambda: False,
        proposals: int | None = None,
        llm: Llm | None = None,
        account: Account | None = None,
        workers: int | None = None,
    ) -> None:
        if (evaluator is None) != (task_seed is None):
            raise ValueError("expected an evaluator with its evaluation of the seed, or neither")
        self._config = config = store.info.config
        self._store, self._evaluator, self._score = store, evaluator, score
        self._task_seed, self._seed = task_seed, Candidate(seed_source)
        self._observers, self._stop = observers, stop
        self._account, self._measures = account, config.device == "gpu"
        self._archive = Archive()
        self._budget = Budget(config.budget, config.gpu_seconds)
        self._proposals, self._proposed = proposals, 0
        self._unevaluated = 0  # proposals of this half, or taken up by it, if it evaluates nothing
        screen = stored_screen(store, self._screen) if evaluator is not None else None
        self._queue = llm.queue if llm else None
        self._prompts = llm.prompts if llm else None
        # With several in flight, compiling drafts here would keep the others waiting.
        is_duplicate = self._is_duplicate if evaluator is not None and config.serial else None
        self._scheduler = Scheduler(config, operators, self._archive, screen, self._prompts, is_duplicate)
        self._inbox: queue.SimpleQueue[_Done | ModelCall] = queue.SimpleQueue()
        self._pool = _Pool(self._evaluate, workers or config.workers, self._inbox)
        self._serial = config.serial
        self._by_asking = {
            asks: [o for o in config.operators if OperatorRef.parse(o).asks is asks] for asks in (False, True)
        }

    def run(self) -> EngineOutcome:
        """Searches until the budget is spent, nothing new can be made, or `stop` says so."""
        with self._pool:
            try:
                self._take_up()
                reason = self._search()
            finally:
                if self._queue is not None:
                    self._queue.close()
        text = self._scheduler.ended if reason is StopReason.STRATEGY else str(reason)
        self._store.event("ended", text)
        return EngineOutcome(reason, text, self._archive.seed, self._archive.best, self._budget.spent, self._proposed)

    def _take_up(self) -> None:
        """Takes in the work of earlier processes, or begins with the seed."""
        for trial in self._store.trials():
            self._scheduler.register(trial.proposal)
            self._absorb(trial, replayed=True)
        for proposal in self._store.pending():
            self._submit(proposal)
        if self._scheduler.next_index == 0:
            self._propose(self._scheduler.first(self._seed))
        if self._evaluator is None and self._archive.seed is None:
            self._scheduler.assume_seed(self._seed)
        if self._queue is not None and self._prompts is not None and self._proposals != 0:
            for question in self._queue.start(self._inbox.put):
                self._prompts.asked(question)

    def _search(self) -> StopReason:
        while True:
            self._fill()
            if not self._pool.busy and not self._in_flight:
                break
            done = self._next()
            if done is None:
                break
            if isinstance(done, ModelCall):
                self._answered(done)
            else:
                evaluation = self._pool.result(done)
                if evaluation is not None:
                    self._finish(done.proposal, evaluation)
        return self._reason()

    def _next(self) -> _Done | ModelCall | None:
        """Waits for the next result.  Returns None if only models are waited for and the run is to stop."""
        while True:
            try:
                return self._inbox.get(timeout=STOP_POLL_S if self._in_flight else None)
            except queue.Empty:
                if self._stop() and not self._pool.busy:
                    return None

    @property
    def asks(self) -> bool:
        """Whether a model may still be asked, here or by the half that proposes."""
        return self._proposals == 0 or self._budget.left() > self._in_flight

    @property
    def _in_flight(self) -> int:
        """Number of questions to models without an outcome yet."""
        return self._queue.busy if self._queue else 0

    def _reason(self) -> StopReason:
        if self._budget.over:
            return StopReason.BUDGET
        if self._stop():
            return StopReason.INTERRUPTED
        if early := self._early():
            return early
        if attained(self._archive.best, self._config):
            return StopReason.ATTAINABLE
        if self._scheduler.ended:
            return StopReason.STRATEGY
        if self._queue is not None and self._queue.ended:
            return self._queue.ended
        if self._evaluator is not None:
            return StopReason.EXHAUSTED if self._proposals is None else StopReason.NOTHING_PENDING
        if self._proposed == self._proposals:
            return StopReason.PROPOSED
        return StopReason.NOTHING_NEW if self._budget.left() else StopReason.ALL_PROPOSED

    def _early(self) -> StopReason | None:
        """Returns why a run of a campaign has to end before its own end; None if it does not."""
        if self._account is None:
            return None
        if self._account.full:
            return StopReason.CAMPAIGN_LIMIT
        silent = self._queue is not None and self._queue.ended is StopReason.SILENT
        return StopReason.SILENT if silent else None

    # --- proposals ---------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Asks for as much as models and workers can take, or as the known trials allow.

        Models come first: they take longest, and need a parent, not a worker.
        """
        if self._evaluator is None:
            ways: Sequence[Callable[[], Sequence[str]]] = (self._any_operators,)
        else:
            ways = (self._all_operators,) if self._serial else (self._model_operators, self._rule_operators)
        for operators in ways:
            while self._may_propose() and not self._stop():
                among = operators()
                if not among or not self._ask(among):
                    break

    def _may_propose(self) -> bool:
        """Returns whether the budget has room; each question in flight will be a proposal."""
        if self._early() or attained(self._archive.best, self._config):
            return False
        if self._scheduler.path and self._unevaluated:
            return False
        most = self._budget.left()
        if self._proposals is not None:
            most = min(most, self._proposals - self._proposed)
        return most > self._in_flight

    def _all_operators(self) -> Sequence[str]:
        return () if self._pool.busy or self._in_flight else (*self._rule_operators(), *self._model_operators())

    def _any_operators(self) -> Sequence[str]:
        """Returns the operators of a half that only proposes: without workers to slow them, rules wait for models."""
        models = self._model_operators()
        return () if self._in_flight and not models else (*self._rule_operators(), *models)

    def _rule_operators(self) -> Sequence[str]:
        return self._by_asking[False] if self._pool.wants_more() else ()

    def _model_operators(self) -> Sequence[str]:
        """Returns the operators whose models are free.

        Answers that wait for a worker count as in flight: more of them would make parents staler, nothing faster.
        """
        if self._queue is None or self._in_flight + self._pool.waiting >= self._queue.slots:
            return ()
        free = self._queue.free()
        return [operator for operator in self._by_asking[True] if OperatorRef.parse(operator).model in free]

    def _ask(self, among: Sequence[str]) -> bool:
        """Asks the scheduler once; returns whether it is worth asking again at once."""
        if self._account is not None and not self._account.reserve(_ONE, wait=not self._in_flight):
            return False
        try:
            made = self._scheduler.ask(among)
        except _Stopped:  # asking changes nothing, so a question can be dropped
            made = None
        if isinstance(made, Question):
            assert self._queue is not None and self._prompts is not None  # without them there are no such operators
            if not self._queue.submit(made):
                self._settle_candidate(made=False)
                return not self._in_flight  # the queue has excluded this model; another may be cheaper
            self._prompts.asked(made)
        elif made is not None:
            self._propose(made)
            self._proposed += 1
        if not isinstance(made, Question):
            self._settle_candidate(made=made is not None)
        return made is not None

    def _settle_candidate(self, *, made: bool) -> None:
        """Counts a reserved candidate of the campaign's limit, or gives it back."""
        if self._account is not None:
            self._account.settle(_ONE, _ONE if made else {})

    def _propose(self, proposal: Proposal) -> None:
        self._store.proposed(proposal)
        self._submit(proposal)

    def _submit(self, proposal: Proposal) -> None:
        self._scheduler.register(proposal)
        self._budget.reserve(proposal)
        if self._evaluator is None:
            self._unevaluated += proposal.index > 0
            return
        if (
            self._task_seed is not None and proposal.index == 0
        ):  # evaluated already; first, as others may descend from it
            self._finish(proposal, self._task_seed)
        else:
            self._pool.submit(proposal)

    # --- results ----------------------------------------------------------------------------------------------------

    def _answered(self, call: ModelCall) -> None:
        assert self._queue is not None and self._prompts is not None  # only the queue sends calls
        self._queue.collected(call)
        self._prompts.collected(call.question)
        if call.fault is not None:
            raise call.fault
        if call.error:
            self._store.event("llm", f"call {call.number}, {call.question.operator}: {call.error}")
            self._settle_candidate(made=False)
            return
        try:
            made = self._scheduler.read(call)
        except _Stopped:  # the answer is stored and read on resume, so its candidate stays reserved
            return
        self._proposed += 1
        if made.evaluation is None:
            self._store.proposed(made.proposal, call=call.number, spans=made.spans, answered=made.answered)
            self._submit(made.proposal)
        else:
            trial = Trial(made.proposal, made.evaluation)
            self._store.proposed_and_finished(trial, call=call.number)
            self._scheduler.register(made.proposal)
            self._absorb(trial, replayed=False)
        self._settle_candidate(made=True)

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
        """Runs in a worker.  None if the run is to end: the proposal stays pending and is evaluated on resume."""
        if self._stop():
            return None
        assert self._evaluator is not None  # nothing is submitted without one
        counted = self._account if self._measures else None
        for _ in range(2):  # a failing evaluator gets a second try
            if counted is not None and not counted.reserve(_LONGEST, wait=True):
                return None
            evaluation = self._evaluator.evaluate(
                proposal.candidate, seed=proposal.seed, known=self._scheduler.known, bar=proposal.bar
            )
            if counted is not None:
                counted.settle(_LONGEST, {GPU_SECONDS: gpu_seconds(evaluation)})
            if evaluation.verdict is not Verdict.INFRASTRUCTURE:
                break
        return evaluation

    def _is_duplicate(self, source: str, plans: Container[str]) -> bool:
        if self._stop():
            raise _Stopped
        assert self._evaluator is not None  # nothing is compiled without one
        return self._evaluator.plan_hash(source) in plans

    def _screen(self, sources: Sequence[str]) -> list[float | None]:
        """Screens each source in a thread: otherwise the driver would wait for one after the other."""

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
    """Threads that evaluate; results go to `inbox` in the order in which they are done."""

    def __init__(
        self,
        evaluate: Callable[[Proposal], Evaluation | None],
        workers: int,
        inbox: queue.SimpleQueue[_Done | ModelCall],
    ) -> None:
        self._evaluate = evaluate
        # One proposal more than there are workers waits, so that none is idle while the next one is made.  Not with a
        # single worker: there each proposal must know all results before it.
        self._room = workers + (workers > 1)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="evaluate")
        # Threads of their own: a proposal must not wait until evaluations had their turn on a GPU.
        self._screening = ThreadPoolExecutor(workers, thread_name_prefix="screen")
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
        return list(self._screening.map(function, sources))

    def result(self, done: _Done) -> Evaluation | None:
        """Returns the evaluation, None if it was dropped.  Raises what the evaluator raised."""
        self.busy -= 1
        return done.future.result()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        # Without waiting: after an error or a second Ctrl-C the caller closes the evaluator, which ends what still
        # runs.
        for executor in (self._executor, self._screening):
            executor.shutdown(wait=False, cancel_futures=True)


def stored_screen(store: Store, screen: Screen) -> Screen:
    """Returns `screen` with the store as its cache: no estimate is paid for twice, even after a kill."""

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
