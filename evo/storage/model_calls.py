"""Stores questions to language models and their answers in the run's store.

A question is stored before it is sent, an answer before it is used.  The log has its own connection to the run's file:
the thread that waits for the models writes it, while the search writes from another thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from evo.core.models import Bill
from evo.core.records import OperatorRef
from evo.core.text import storable
from evo.storage.queries import RunReader
from evo.storage.schema import connect_to_write, decoding, transaction
from operators.llm.base import Message, Prompt


@dataclass(frozen=True)
class Question:
    """A question to a model, and the data for the proposal that its answer becomes."""

    operator: str  # with its model: "mutate@NAME"
    prompt: Prompt
    parents: tuple[int, ...]
    island: int
    told: int  # trials that had finished when it was made
    proposed: int = 0  # trials that had been proposed

    @property
    def model(self) -> str:
        return OperatorRef.parse(self.operator).model or ""


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answer.  `finish`: "stop", "length" (truncated) or what else the endpoint calls it."""

    text: str
    finish: str
    reasoning: str = ""
    bill: Bill | None = None  # of all attempts; None if unknown


@dataclass(frozen=True)
class ModelCall:
    """A question with its number; with an answer, or an error, or neither yet."""

    number: int
    question: Question
    answer: ModelAnswer | None = None
    error: str = ""
    fault: Exception | None = None  # an error that will not pass by itself: the run cannot continue
    limited: bool = False  # the error is that the limits have no room for another attempt


@dataclass(frozen=True)
class StoredCall:
    """A call of a run that is looked at: the trial that came of it, and when it was asked and answered or given up."""

    call: ModelCall
    trial: int | None
    asked_at: float
    ended_at: float | None


def stored_calls(run: RunReader) -> Iterator[StoredCall]:
    """The calls of a run in the order they were asked."""
    for *row, trial, asked_at, ended_at in run.rows(
        f"SELECT {_CALL}, trial, asked_at, answered_at FROM llm_calls ORDER BY call"
    ):
        yield StoredCall(_call(tuple(row), run.folder), trial, asked_at, ended_at)


class CallCost(NamedTuple):
    """What a call cost, and what came of it.  Tokens and dollars are None if they are unknown."""

    trial: int | None  # made of its answer
    model: str
    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    error: str | None


def call_costs(run: RunReader) -> list[CallCost]:
    """Return what each call of a run cost, in the order they were asked."""
    query = f"SELECT {', '.join(CallCost._fields)} FROM llm_calls ORDER BY call"
    return [CallCost(*row) for row in run.rows(query)]


@dataclass(frozen=True)
class Spent:
    """The cost of a call so far: known bills, and attempts without one."""

    model: str
    messages: tuple[Message, ...]
    bill: Bill
    unsettled: int


def calls_spent(run: RunReader) -> Iterator[Spent]:
    """Yields the cost of each call of a run."""
    return _spent(run.rows(_SPENT), run.folder)


def open_call_count(run: RunReader) -> int:
    """Returns how many calls of a run may still become proposals."""
    return int(next(run.rows("SELECT COUNT(*) FROM llm_calls WHERE trial IS NULL AND error IS NULL"))[0])


_SPENT = """
    SELECT call, model, request, COALESCE(tokens_in, 0), COALESCE(tokens_out, 0), usd, unsettled FROM llm_calls
"""


def _spent(rows: Iterable[tuple[Any, ...]], folder: Path) -> Iterator[Spent]:
    for number, model, request, tokens_in, tokens_out, usd, unsettled in rows:
        with decoding(folder, "llm_calls", f"call {number}"):
            messages = _messages(request)
        yield Spent(model, messages, Bill(tokens_in, tokens_out, usd), unsettled)


class CallLog:
    """Writes and reads `llm_calls` of the run in `folder`; made in one thread, then used by one other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db = connect_to_write(folder, check_same_thread=False)

    def asked(self, question: Question, parameters: Mapping[str, Any]) -> int:
        """Stores a question; its number."""
        q = question
        request = {
            "messages": [{"role": m.role, "text": m.text} for m in q.prompt.messages],
            "parameters": dict(parameters),
        } | ({"direction": q.prompt.direction} if q.prompt.direction else {})
        row = (q.prompt.hash, q.model, q.operator, json.dumps(q.parents), q.island, q.told, q.proposed)
        return self._write(
            "INSERT INTO llm_calls (prompt_hash, model, operator, parents, island, told, proposed, request, asked_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, json.dumps(request), time.time()),
        )

    def sending(self, number: int) -> None:
        """An attempt is about to be sent: from now on it may cost."""
        self._write("UPDATE llm_calls SET attempts = attempts + 1, unsettled = unsettled + 1 WHERE call = ?", (number,))

    def settled(self, number: int, bill: Bill) -> None:
        """The bill of an attempt."""
        self._write(_SETTLE, (bill.tokens_in, bill.tokens_out, bill.usd, number))

    def answered(self, number: int, answer: ModelAnswer, seconds: float) -> None:
        """An answer, with the bill of its attempt (None: unknown), in one transaction."""
        with transaction(self._db, self._folder):
            if answer.bill is not None:
                self._db.execute(_SETTLE, (answer.bill.tokens_in, answer.bill.tokens_out, answer.bill.usd, number))
            self._db.execute(
                "UPDATE llm_calls SET answer = ?, reasoning = ?, finish = ?, seconds = ?, answered_at = ? "
                "WHERE call = ?",
                (answer.text, answer.reasoning or None, answer.finish, seconds, time.time(), number),
            )

    def failed(self, number: int, error: str) -> None:
        row = (storable(error), time.time(), number)
        self._write("UPDATE llm_calls SET error = ?, answered_at = ? WHERE call = ?", row)

    def open_calls(self) -> Iterator[ModelCall]:
        """Calls no trial came of yet, and that did not fail, in the order they were asked."""
        query = f"SELECT {_CALL} FROM llm_calls WHERE trial IS NULL AND error IS NULL ORDER BY call"
        return (_call(row, self._folder) for row in self._db.execute(query).fetchall())

    def call(self, number: int) -> ModelCall:
        row = self._db.execute(f"SELECT {_CALL} FROM llm_calls WHERE call = ?", (number,)).fetchone()
        return _call(row, self._folder)

    def spent(self) -> Iterator[Spent]:
        """Yields the cost of each call."""
        return _spent(self._db.execute(_SPENT), self._folder)

    def repeats(self, call: ModelCall) -> int:
        """Returns how many earlier calls asked the same model the same and were answered."""
        row = self._db.execute(
            "SELECT COUNT(*) FROM llm_calls WHERE prompt_hash = ? AND model = ? AND call < ? AND answer IS NOT NULL",
            (call.question.prompt.hash, call.question.model, call.number),
        )
        return int(row.fetchone()[0])

    def close(self) -> None:
        self._db.close()

    def _write(self, statement: str, values: tuple[Any, ...]) -> int:
        with transaction(self._db, self._folder):
            return self._db.execute(statement, values).lastrowid or 0


# Dollars add up to NULL if one of them is unknown.
_SETTLE = """
    UPDATE llm_calls SET unsettled = unsettled - 1,
        usd = CASE WHEN tokens_in IS NULL THEN ?3 ELSE usd + ?3 END,
        tokens_in = COALESCE(tokens_in, 0) + ?1, tokens_out = COALESCE(tokens_out, 0) + ?2
    WHERE call = ?4
"""
_CALL = (
    "call, operator, parents, island, told, proposed, request, "
    "answer, reasoning, finish, tokens_in, tokens_out, usd, error"
)


def _call(row: tuple[Any, ...], folder: Path) -> ModelCall:
    number, operator, parents, island, told, proposed, request, text, reasoning, finish, *bill, error = row
    with decoding(folder, "llm_calls", f"call {number}"):
        direction = json.loads(request).get("direction", "")  # runs of earlier versions have none
        prompt = Prompt(OperatorRef.parse(operator).name, _messages(request), direction)
        question = Question(operator, prompt, tuple(json.loads(parents)), island, told, proposed)
    answer = None
    if text is not None:
        answer = ModelAnswer(text, finish, reasoning or "", None if bill[0] is None else Bill(*bill))
    return ModelCall(number, question, answer, error or "")


def _messages(request: str) -> tuple[Message, ...]:
    return tuple(Message(m["role"], m["text"]) for m in json.loads(request)["messages"])
