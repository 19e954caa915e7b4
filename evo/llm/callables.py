"""Provider of models that are Python functions: called in threads, while the search goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

from evo.core.models import Answerer, Bill, Model
from evo.llm.base import Failed, LlmError, Request
from evo.storage.model_calls import ModelAnswer


class CallableProvider:
    """Asks a function.  What it was asked is worth waiting for: a thread cannot be ended."""

    paid = True
    parameters: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, model: Model, function: Answerer) -> None:
        self._model, self._function = model, function

    async def ask(self, request: Request) -> ModelAnswer:
        messages = [{"role": m.role, "content": m.text} for m in request.prompt.messages]
        try:
            found = await asyncio.to_thread(self._function, messages)
        except Exception as error:  # the user's code may raise anything
            raise Failed(f"{type(error).__name__}: {error}") from error
        return self._answer(found)

    def _answer(self, found: Any) -> ModelAnswer:
        """Raises LlmError for anything else than an answer: the function would not return one when asked again."""
        text = found if isinstance(found, str) else getattr(found, "text", None)
        if not isinstance(text, str):
            raise LlmError(
                f"model {self._model.name}: expected its function to return a text, or an object with text, tokens_in "
                f"and tokens_out, got {found!r:.100}; change what it returns"
            )
        finish, reasoning = (getattr(found, name, None) or "" for name in ("finish", "reasoning"))
        return ModelAnswer(text, str(finish) or "stop", str(reasoning), self._bill(found))

    def _bill(self, found: Any) -> Bill | None:
        """What the function counted; None if it did not."""
        tokens_in, tokens_out = (getattr(found, name, None) for name in ("tokens_in", "tokens_out"))
        if tokens_in is None and tokens_out is None:
            return None
        if not _is_count(tokens_in) or not _is_count(tokens_out):
            raise LlmError(
                f"model {self._model.name}: expected tokens_in and tokens_out to be integers from 0, got {tokens_in!r} "
                f"and {tokens_out!r}; change what its function returns"
            )
        usd = getattr(found, "usd", None)
        return Bill(tokens_in, tokens_out, self._model.usd(tokens_in, tokens_out) if usd is None else float(usd))

    async def close(self) -> None:
        """There is nothing to close."""


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
