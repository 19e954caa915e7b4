"""Makes a task from a bare kernel file: asks a model, checks its answers, and sends back what is wrong with them.

Questions are asked one after the other, outside of a run.  A file keeps the answers as `evo calls` prints them: one a
line, with the messages it answers; `--model replay:FILE` reads it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.text import storable
from evo.llm.base import Failed, LlmError, Request
from evo.llm.budget import ModelBudget, most
from evo.llm.providers import open_provider
from evo.llm.queue import LONGEST_WAIT_S, ask_once, backoff_s
from evo.storage.model_calls import ModelAnswer
from fitness.frontend.plan import ITEMSIZE
from fitness.tasks.scaffold import entries, waivers
from fitness.validation.draft import LEAST_CASES, MOST_CASES, MOST_TOLERANCE, Accepted, Refused
from fitness.validation.draft_rehearsal import MOST_BYTES
from operators.llm.base import Prompt, Unreadable
from operators.llm.drafting import ask_for_task, ask_to_correct, read_task

ROUNDS = 3


@dataclass(frozen=True)
class Round:
    """One answer.  `source`: of the task.py in it; `reason`: why it cannot be used, "" if it can."""

    prompt: Prompt
    source: str
    reason: str


@dataclass
class Drafting:
    """The result.  `accepted` stays empty if no answer could be used; `ended`: why no more were asked for."""

    rounds: list[Round] = field(default_factory=list)
    accepted: Accepted | None = None
    ended: str = ""


def draft(
    kernel: str,
    ask: Callable[[Prompt], ModelAnswer | None],
    check: Callable[[str], Accepted],
    say: Callable[[Round], None] = lambda done: None,
) -> Drafting:
    """Asks for a task of `kernel` until one passes `check`, at most ROUNDS times; `say` gets each round.

    ask: returns the answer, None if the limits have no room for it; check: raises Refused.
    """
    found = Drafting()
    prompt = first_prompt(kernel)
    for _ in range(ROUNDS):
        answer = ask(prompt)
        if answer is None:
            found.ended = "the limits on tokens or dollars have no room for another question"
            return found
        read = read_task(answer.text)
        if isinstance(read, Unreadable):
            source, reason = "", read.reason
        else:
            source, reason = read, _problem(found, read, check)
        found.rounds.append(Round(prompt, source, reason))
        say(found.rounds[-1])
        if not reason:
            return found
        prompt = ask_to_correct(prompt, answer.text, reason)
    found.ended = f"{ROUNDS} answers could not be used"
    return found


def first_prompt(kernel: str) -> Prompt:
    """Returns the first question about a kernel.  Raises TaskError if it is not Python or has no host function."""
    names = [function.name for function in entries(kernel)]
    limits = {
        "least": LEAST_CASES,
        "most": MOST_CASES,
        "gib": MOST_BYTES >> 30,
        "dtypes": list(ITEMSIZE),
        "tolerance": MOST_TOLERANCE,
    }
    return ask_for_task(storable(kernel), names, waivers(kernel, names[0]), limits)


def _problem(found: Drafting, source: str, check: Callable[[str], Accepted]) -> str:
    """Returns why `source` cannot be used; "" if it can, and then `found` accepts it."""
    try:
        found.accepted = check(source)
    except Refused as refused:
        return str(refused)
    return ""


class Dialogue:
    """Asks `model` one question after the other, and keeps its answers in a file; a context manager."""

    def __init__(self, model: Model, environment: Mapping[str, str], limits: ModelBudget, file: Path) -> None:
        """`file` is made with the first answer.  Raises ConfigError if something is missing to ask the model."""
        self._model, self._limits, self._file = model, limits, file
        self._provider = open_provider(model, environment)
        self._chance = random.Random()
        self._runner = asyncio.Runner()  # one loop for all questions: connections belong to the loop they were made in
        self._asked = 0

    def ask(self, prompt: Prompt) -> ModelAnswer | None:
        """Asks, stores the answer and returns it; None if the limits have no room for the question.

        Raises LlmError if the model cannot be asked, or did not answer in any attempt.
        """
        self._asked += 1
        answer = self._runner.run(self._attempts(Request(self._asked, prompt.operator, prompt)))
        if answer is not None:
            self._store(prompt, answer)
        return answer

    async def _attempts(self, request: Request) -> ModelAnswer | None:
        error, wait_s = "no attempt was made", 0.0
        for attempt in range(self._model.attempts):
            await asyncio.sleep(max(backoff_s(attempt, self._chance), wait_s))
            reserved = most(self._model, request.prompt.messages)
            if not self._limits.reserve(reserved):
                return None
            try:
                answer = await ask_once(self._provider, request, self._model)
            except Failed as failure:
                bill, error, again = failure.bill, str(failure), failure.again
                wait_s = min(failure.wait_s or 0.0, LONGEST_WAIT_S)
            else:
                bill, error, again, wait_s = answer.bill, f"an empty answer (finish: {answer.finish})", True, 0.0
                if answer.text.strip() or answer.finish == "length":
                    error = ""
            if bill is not None:  # an attempt without a bill stays charged with the most that it can have cost
                self._limits.settle(reserved, bill)
            if not error:
                return answer
            if not again:
                break
        raise LlmError(f"expected an answer of model {self._model.name}, got none in {attempt + 1} attempts: {error}")

    def _store(self, prompt: Prompt, answer: ModelAnswer) -> None:
        bill = answer.bill
        row: dict[str, Any] = {
            "model": self._model.name,
            "prompt_hash": prompt.hash,
            "answer": answer.text,
            "reasoning": answer.reasoning or None,
            "finish": answer.finish,
            "tokens_in": bill.tokens_in if bill else None,
            "tokens_out": bill.tokens_out if bill else None,
            "usd": bill.usd if bill else None,
            "messages": [{"role": m.role, "text": m.text} for m in prompt.messages],
        }
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise ConfigError(f"expected to write to {self._file}, got: {error}; choose another folder") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._runner.run(self._provider.close())
        self._runner.close()
