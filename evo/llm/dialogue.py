"""Asks one model one question after the other, outside of a run, and keeps its answers in a file.

The file is what `evo calls` prints, an answer a line, with the messages it answers; `--model replay:FILE` reads it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.llm.base import Failed, LlmError, Request
from evo.llm.budget import ModelBudget, most
from evo.llm.providers import open_provider
from evo.llm.queue import LONGEST_WAIT_S, ask_once, backoff_s
from evo.storage.model_calls import ModelAnswer
from operators.llm.base import Prompt


class Dialogue:
    """Asks `model`; a context manager."""

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
                bill, error = failure.bill, str(failure)
                wait_s = min(failure.wait_s or 0.0, LONGEST_WAIT_S)
            else:
                bill, error, wait_s = answer.bill, f"an empty answer (finish: {answer.finish})", 0.0
                if answer.text.strip() or answer.finish == "length":
                    error = ""
            if bill is not None:  # an attempt without a bill stays charged with the most that it can have cost
                self._limits.settle(reserved, bill)
            if not error:
                return answer
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
