"""The lane of the language models: questions in, calls with an answer or an error out, while evaluations go on.

One thread runs all conversations.  Each attempt is reserved in the limits and stored before it is sent, each answer is
stored before it is handed on.
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
from evo.storage.model_calls import Call, CallLog, ModelAnswer, Question

# Waits between two attempts, where the endpoint names none: 1, 2, 4 ... s, half of it by chance, so that those refused
# together do not come back together.
BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 60.0
# What an endpoint asks for is obeyed up to here; daily quotas name hours, and a run should rather say so.
LONGEST_WAIT_S = 600.0
# Calls of a model that fail one after the other, all their attempts included, until it is asked nothing any more.
FAILURES = 3


Tell = Callable[[Model, str], None]


class ModelQueue:
    """Asks models.  Its public methods are for the thread of the search.

    tell: called, from the lane's thread, with the error of the first attempt of each model that fails.
    """

    def __init__(
        self,
        folder: Path,
        models: Sequence[Model],
        providers: Mapping[str, Provider],
        limits: ModelBudget,
        slots: int,
        tell: Tell = lambda model, error: None,
    ) -> None:
        self.slots = slots
        self.models = {m.name: m for m in models}
        self._providers = providers
        self._log = CallLog(folder)
        self._limits = limits
        self._tell = tell
        self._told: set[str] = set()  # models whose first failure was told
        self._flying: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()  # of a model, one after the other
        self._full: set[str] = set()  # models that the limits have no room for
        self._not_before: dict[str, float] = {}  # when an endpoint wants to be asked again, by the monotonic clock
        self._deliver: Callable[[Call], None] = lambda call: None
        self._tasks: dict[asyncio.Task[None], bool] = {}  # whether what is under way is paid for
        self._closing = asyncio.Event()
        # One of its own: while DEAP draws from Python's global one in the search's thread, nobody else may.
        self._chance = random.Random()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm", daemon=True)

    def start(self, deliver: Callable[[Call], None]) -> list[Question]:
        """Takes up what an earlier process left, and says what that is; `deliver` gets every call."""
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
        """Questions whose outcome was not collected yet."""
        return self._flying.total()

    def free(self) -> list[str]:
        """Models that may be asked now."""
        return [n for n, m in self.models.items() if self._usable(n) and self._flying[n] < m.concurrency]

    def _usable(self, name: str) -> bool:
        return name not in self._full and self._failures[name] < FAILURES

    @property
    def ended(self) -> StopReason | None:
        """Why no model will be asked any more; None while one may be."""
        if any(map(self._usable, self.models)):
            return None
        return StopReason.LIMIT if self._full else StopReason.SILENT

    def submit(self, question: Question) -> bool:
        """Asks; False where the limits have no room for it now.

        Where nothing is in flight that could give room back, its model is asked nothing any more.
        """
        model = self.models[question.model]
        reserved = most(model, question.prompt.messages)
        if not self._limits.reserve(reserved):
            if not self.busy:
                self._full.add(model.name)
            return False
        self._flying[model.name] += 1
        self._loop.call_soon_threadsafe(self._begin, question, reserved)
        return True

    def collected(self, call: Call) -> None:
        """The search has taken in an outcome."""
        name = call.question.model
        self._flying[name] -= 1
        if not call.limited:
            self._failures[name] = self._failures[name] + 1 if call.error else 0

    def close(self, *, drop: bool = False) -> None:
        """Ends the lane.  What is paid for is waited for and stored, unless `drop` says so; the rest is asked again on
        resume."""
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

    # --- in the lane's thread ----------------------------------------------------------------------------------------

    def _begin(self, question: Question, reserved: Bill) -> None:
        try:
            number = self._log.asked(question, self._providers[question.model].parameters)
        except Exception as error:  # the search is to raise it
            self._deliver(Call(0, question, error=repr(error), fault=error))
        else:
            self._go_on(Call(number, question), reserved)

    def _go_on(self, call: Call, reserved: Bill | None) -> None:
        task = self._loop.create_task(self._outcome(call, reserved))
        self._tasks[task] = self._providers[call.question.model].paid
        task.add_done_callback(self._tasks.pop)

    async def _outcome(self, call: Call, reserved: Bill | None) -> None:
        try:
            self._deliver(await self._ask(call, reserved))
        except _Closing:
            pass
        except LlmError as error:
            self._log.failed(call.number, str(error))
            self._deliver(dataclasses.replace(call, error=str(error), fault=error))
        except Exception as error:
            self._deliver(dataclasses.replace(call, error=repr(error), fault=error))

    async def _ask(self, call: Call, reserved: Bill | None) -> Call:
        """Attempts until there is an answer, or none is to be had."""
        model = self.models[call.question.model]
        provider = self._providers[model.name]
        request = Request(call.number, call.question.operator, call.question.prompt, self._log.repeats(call))
        started = time.monotonic()
        error, limited = "no attempt was made", False
        for attempt in range(model.attempts):
            await self._pause(model.name, attempt)
            if reserved is None:
                reserved = most(model, call.question.prompt.messages)
                limited = not self._limits.reserve(reserved)
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
                self._tell_once(model, error)
            else:
                if answer.text.strip() or answer.finish == "length":
                    return self._answered(call, reserved, answer, time.monotonic() - started)
                self._settle(call.number, reserved, answer.bill)
                error = f"an empty answer (finish: {answer.finish})"
            reserved = None
        self._log.failed(call.number, error)
        return dataclasses.replace(call, error=error, limited=limited)

    def _answered(self, call: Call, reserved: Bill, answer: ModelAnswer, seconds: float) -> Call:
        self._log.answered(call.number, answer, seconds)
        if answer.bill is not None:
            self._limits.settle(reserved, answer.bill)
        # As it is stored: with the bills of the attempts before, so that a resumed run sees the same.
        return self._log.call(call.number)

    def _tell_once(self, model: Model, error: str) -> None:
        if model.name not in self._told:
            self._told.add(model.name)
            self._tell(model, error)

    def _settle(self, number: int, reserved: Bill, bill: Bill | None) -> None:
        """An attempt without a bill stays charged with its reservation."""
        if bill is not None:
            self._log.settled(number, bill)
            self._limits.settle(reserved, bill)

    def _wait(self, name: str, seconds: float | None) -> None:
        """An endpoint that asks for a pause gets it from all conversations."""
        if seconds is not None:
            until = time.monotonic() + min(seconds, LONGEST_WAIT_S)
            self._not_before[name] = max(until, self._not_before.get(name, until))

    async def _pause(self, name: str, attempt: int) -> None:
        """Waits until the next attempt is due.  Raises _Closing where the lane ends first."""
        asked = self._not_before.get(name, 0.0) - time.monotonic()
        wait_s = max(backoff_s(attempt, self._chance), asked)
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)
        if self._closing.is_set():
            raise _Closing


async def ask_once(provider: Provider, request: Request, model: Model) -> ModelAnswer:
    """One attempt.  Raises Failed also where a paid one takes longer than the model's time-out.

    Here answers come in, and from here on they are what UTF-8 can hold: what is read is what is stored, and replayed.
    """
    if not provider.paid:
        return _storable(await provider.ask(request))
    try:
        return _storable(await asyncio.wait_for(provider.ask(request), model.timeout_s))
    except TimeoutError:  # the endpoint sent something now and then, but never all of it
        raise Failed(f"no whole answer within {model.timeout_s:g} s") from None


def _storable(answer: ModelAnswer) -> ModelAnswer:
    text, finish, reasoning = map(storable, (answer.text, answer.finish, answer.reasoning))
    return dataclasses.replace(answer, text=text, finish=finish, reasoning=reasoning)


def backoff_s(attempt: int, chance: random.Random) -> float:
    """Seconds to wait before an attempt, the first of which is 0."""
    return min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1)) * chance.uniform(0.5, 1.0) if attempt else 0.0


class _Closing(Exception):
    """The lane ends; what was not sent yet is asked on resume."""


def open_lane(
    folder: Path,
    models: Sequence[Model],
    environment: Mapping[str, str],
    limits: ModelBudget,
    slots: int,
    tell: Tell = lambda model, error: None,
    functions: Mapping[str, Answerer] = MappingProxyType({}),
) -> ModelQueue:
    """A queue with a provider for each model; keys come from `environment`, `functions` answer by a model's name."""
    providers = {m.name: open_provider(m, environment, functions.get(m.name)) for m in models}
    return ModelQueue(folder, models, providers, limits, slots, tell)
