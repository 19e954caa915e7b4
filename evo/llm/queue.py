"""Asks language models while evaluations go on: questions in, calls with an answer or an error out.

One thread runs all conversations.  Each attempt is reserved in the limits and stored before it is sent; each answer is
stored before it is delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from evo.core.models import Answerer, Bill, Model
from evo.core.records import StopReason
from evo.core.text import storable
from evo.llm.base import Failed, LlmError, Provider, Request
from evo.llm.budget import ModelBudget, most
from evo.llm.providers import open_provider
from evo.storage.ledger import POLL_S
from evo.storage.model_calls import CallLog, ModelAnswer, ModelCall, Question

# Waits between two attempts, if the endpoint does not name one: 1, 2, 4 ... s, half of it random, so that requests
# refused together do not come back together.
BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 60.0
# The longest wait that an endpoint may ask for; daily quotas name hours, and a run should rather report that.
LONGEST_WAIT_S = 600.0
# Calls of a model that fail one after the other, with all their attempts, before it is not asked any more.
FAILURES = 3


Report = Callable[[Model, str], None]


class ModelQueue:
    """Asks models.  Its public methods are for the thread of the search.

    report: called, from the queue's thread, with the error of the first attempt of each model that fails.
    run: the name of the run in its campaign, "" for a run of its own; a mailbox says whose question it has.
    """

    def __init__(
        self,
        folder: Path,
        models: Sequence[Model],
        providers: Mapping[str, Provider],
        limits: ModelBudget,
        slots: int,
        report: Report = lambda model, error: None,
        run: str = "",
    ) -> None:
        self.slots = slots
        self._run = run
        self.models = {m.name: m for m in models}
        self._providers = providers
        self._log = CallLog(folder)
        self._limits = limits
        self._report = report
        self._reported: set[str] = set()  # models whose first failure was reported
        self._flying: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()  # of a model, one after the other
        self._full: set[str] = set()  # models that the limits have no room for
        self._not_before: dict[str, float] = {}  # when an endpoint accepts requests again, by the monotonic clock
        self._deliver: Callable[[ModelCall], None] = lambda call: None
        self._tasks: dict[asyncio.Task[None], bool] = {}  # request in flight -> whether it is paid for
        self._closing = asyncio.Event()
        # Its own generator: while DEAP draws from Python's global one in the search's thread, no other thread may.
        self._chance = random.Random()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm", daemon=True)

    def start(self, deliver: Callable[[ModelCall], None]) -> list[Question]:
        """Takes up the calls that an earlier process left, and returns their questions; `deliver` gets every call."""
        self._deliver = deliver
        for spent in self._log.spent():
            self._limits.charge(spent.bill)
            model = self.models.get(spent.model)
            for _ in range(spent.unsettled if model else 0):
                self._limits.charge(most(model, spent.messages))  # type: ignore[arg-type]
        left = list(self._log.open_calls())
        self._thread.start()
        for call in left:
            self._flying[call.question.model] += 1
            if call.answer is not None:
                deliver(call)
            else:
                self._loop.call_soon_threadsafe(self._go_on, call, None)
        return [call.question for call in left]

    @property
    def busy(self) -> int:
        """Number of questions without a collected outcome."""
        return self._flying.total()

    def free(self) -> list[str]:
        """Returns the models that may be asked now."""
        return [n for n, m in self.models.items() if self._usable(n) and self._flying[n] < m.concurrency]

    def _usable(self, name: str) -> bool:
        return name not in self._full and self._failures[name] < FAILURES

    @property
    def ended(self) -> StopReason | None:
        """Why no model will be asked any more; None while one may be asked."""
        if any(map(self._usable, self.models)):
            return None
        return StopReason.LIMIT if self._full else StopReason.SILENT

    def submit(self, question: Question) -> bool:
        """Asks; returns False if the limits have no room for it now.

        If no question in flight could give room back, its model is not asked any more.
        """
        model = self.models[question.model]
        reserved = most(model, question.prompt.messages)
        if not self._limits.reserve(reserved, wait=not self.busy):
            if not self.busy:
                self._full.add(model.name)
            return False
        self._flying[model.name] += 1
        self._loop.call_soon_threadsafe(self._begin, question, reserved)
        return True

    def collected(self, call: ModelCall) -> None:
        """Notes that the search has taken in an outcome."""
        name = call.question.model
        self._flying[name] -= 1
        if not call.limited:
            self._failures[name] = self._failures[name] + 1 if call.error else 0

    def close(self, *, drop: bool = False) -> None:
        """Closes the queue: waits for paid requests and stores their answers; the rest is asked again on resume.

        drop: do not wait for paid requests either.
        """
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._finish(drop), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._log.close()

    async def _finish(self, drop: bool) -> None:
        self._closing.set()
        for task, paid in self._tasks.items():
            if drop or not paid:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for provider in self._providers.values():
            await provider.close()

    # --- in the queue's thread --------------------------------------------------------------------------------------

    def _begin(self, question: Question, reserved: Bill) -> None:
        try:
            number = self._log.asked(question, self._providers[question.model].parameters)
        except Exception as error:  # the search raises it
            self._deliver(ModelCall(0, question, error=repr(error), fault=error))
        else:
            self._go_on(ModelCall(number, question), reserved)

    def _go_on(self, call: ModelCall, reserved: Bill | None) -> None:
        task = self._loop.create_task(self._outcome(call, reserved))
        self._tasks[task] = self._providers[call.question.model].paid
        task.add_done_callback(self._tasks.pop)

    async def _outcome(self, call: ModelCall, reserved: Bill | None) -> None:
        try:
            self._deliver(await self._ask(call, reserved))
        except _Closing:
            pass
        except LlmError as error:
            self._log.failed(call.number, str(error))
            self._deliver(dataclasses.replace(call, error=str(error), fault=error))
        except Exception as error:
            self._deliver(dataclasses.replace(call, error=repr(error), fault=error))

    async def _ask(self, call: ModelCall, reserved: Bill | None) -> ModelCall:
        """Makes attempts until there is an answer or no attempt is left."""
        model = self.models[call.question.model]
        provider = self._providers[model.name]
        question = call.question
        request = Request(call.number, question.operator, question.prompt, self._log.repeats(call), self._run)
        started = time.monotonic()
        error, limited = "no attempt was made", False
        for attempt in range(model.attempts):
            await self._pause(model.name, attempt)
            if reserved is None:
                reserved = most(model, call.question.prompt.messages)
                limited = not await self._reserved(reserved)
                if limited:
                    error += "; the limits have no room for another attempt"
                    break
            self._log.sending(call.number)
            try:
                answer = await ask_once(provider, request, model)
            except Failed as failure:
                self._settle(call.number, reserved, failure.bill)
                self._wait(model.name, failure.wait_s)
                error = str(failure)
                self._report_once(model, error)
                if not failure.again:
                    break
            else:
                if answer.text.strip() or answer.finish == "length":
                    return self._answered(call, reserved, answer, time.monotonic() - started)
                self._settle(call.number, reserved, answer.bill)
                error = f"an empty answer (finish: {answer.finish})"
            reserved = None
        self._log.failed(call.number, error)
        return dataclasses.replace(call, error=error, limited=limited)

    async def _reserved(self, bill: Bill) -> bool:
        """Reserves for another attempt; waits while other runs of a campaign may give room back."""
        while not self._limits.reserve(bill):
            if not self._limits.waiting:
                return False
            await self._closes_within(POLL_S)
        return True

    def _answered(self, call: ModelCall, reserved: Bill, answer: ModelAnswer, seconds: float) -> ModelCall:
        self._log.answered(call.number, answer, seconds)
        if answer.bill is not None:
            self._limits.settle(reserved, answer.bill)
        else:
            self._limits.keep(reserved)
        # From the store: with the bills of the attempts before, so that a resumed run sees the same.
        return self._log.call(call.number)

    def _report_once(self, model: Model, error: str) -> None:
        if model.name not in self._reported:
            self._reported.add(model.name)
            self._report(model, error)

    def _settle(self, number: int, reserved: Bill, bill: Bill | None) -> None:
        """Replaces a reservation by the bill; an attempt without a bill stays charged with its reservation."""
        if bill is not None:
            self._log.settled(number, bill)
            self._limits.settle(reserved, bill)
        else:
            self._limits.keep(reserved)

    def _wait(self, name: str, seconds: float | None) -> None:
        """Pauses all conversations with an endpoint that asks for a pause."""
        if seconds is not None:
            until = time.monotonic() + min(seconds, LONGEST_WAIT_S)
            self._not_before[name] = max(until, self._not_before.get(name, until))

    async def _pause(self, name: str, attempt: int) -> None:
        """Waits until the next attempt is due.  Raises _Closing if the queue closes first."""
        asked = self._not_before.get(name, 0.0) - time.monotonic()
        await self._closes_within(max(backoff_s(attempt, self._chance), asked))

    async def _closes_within(self, wait_s: float) -> None:
        """Waits.  Raises _Closing if the queue closes meanwhile."""
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)
        if self._closing.is_set():
            raise _Closing


async def ask_once(provider: Provider, request: Request, model: Model) -> ModelAnswer:
    """Makes one attempt and returns the answer.  Raises Failed also if a paid one exceeds the model's time-out.

    Answers enter here, and from here on UTF-8 can hold them: what is read is what is stored, and replayed.
    """
    if not provider.paid:
        return _storable(await provider.ask(request))
    try:
        return _storable(await asyncio.wait_for(provider.ask(request), model.timeout_s))
    except TimeoutError:  # the endpoint sent something from time to time, but never all of it
        raise Failed(f"no whole answer within {model.timeout_s:g} s") from None


def _storable(answer: ModelAnswer) -> ModelAnswer:
    text, finish, reasoning = map(storable, (answer.text, answer.finish, answer.reasoning))
    return dataclasses.replace(answer, text=text, finish=finish, reasoning=reasoning)


def backoff_s(attempt: int, chance: random.Random) -> float:
    """Returns the seconds to wait before an attempt; the first one is 0."""
    return min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1)) * chance.uniform(0.5, 1.0) if attempt else 0.0


class _Closing(Exception):
    """The queue closes; what was not sent yet is asked on resume."""


def open_model_queue(
    folder: Path,
    models: Sequence[Model],
    environment: Mapping[str, str],
    limits: ModelBudget,
    slots: int,
    report: Report = lambda model, error: None,
    functions: Mapping[str, Answerer] = MappingProxyType({}),
    run: str = "",
) -> ModelQueue:
    """Returns a queue with a provider for each model; keys come from `environment`, `functions` answer by name."""
    providers = {m.name: open_provider(m, environment, functions.get(m.name)) for m in models}
    return ModelQueue(folder, models, providers, limits, slots, report, run)
