"""Opens providers, which answer questions: an endpoint, a mailbox, a record of earlier answers, or a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

from evo.core import plugins
from evo.core.errors import ConfigError, how_to_install
from evo.core.models import CALLABLE, Answerer, Bill, Model
from evo.llm.base import Failed, LlmError, Provider, Request
from evo.llm.mailbox import MailboxProvider
from evo.llm.replay import ReplayProvider
from evo.storage.model_calls import ModelAnswer

# Makes the provider of a model, with its key from the environment.
MakeProvider = Callable[[Model, Mapping[str, str]], Provider]


def open_provider(model: Model, environment: Mapping[str, str], function: Answerer | None = None) -> Provider:
    """The provider of `model`, with its key from `environment`; `function` answers for a model that is one.

    Raises ConfigError if there is no such provider, or something is missing to ask it.
    """
    if function is not None:
        return _CallableProvider(model, function)
    made: MakeProvider = plugins.resolve("providers", model.provider).value
    return made(model, environment)


def built_in() -> Mapping[str, MakeProvider]:
    """What makes evo's own providers, by what a model's endpoint begins with; "openai" stands for URLs."""
    return {"openai": _open_endpoint, "mailbox": _open_mailbox, "replay": _open_replay, CALLABLE: _open_function}


def missing(plugin: Any) -> str:
    """What a plug-in lacks to make providers, in words; "" for nothing."""
    if not callable(plugin):
        return f"expected a class or function of a Model and the environment, got {type(plugin).__name__}"
    wanted = ("paid", "parameters", "ask", "close")
    lacks = [name for name in wanted if isinstance(plugin, type) and not hasattr(plugin, name)]
    return f"expected what evo.llm.base.Provider has, got a class without {', '.join(lacks)}" if lacks else ""


def _open_mailbox(model: Model, environment: Mapping[str, str]) -> Provider:
    return MailboxProvider(model)


def _open_replay(model: Model, environment: Mapping[str, str]) -> Provider:
    return ReplayProvider(model)


def _open_function(model: Model, environment: Mapping[str, str]) -> Provider:
    name = model.endpoint.partition(":")[2]
    raise ConfigError(
        f"model {model.name}: expected the Python function {name}, which answers for it and is not stored with a run; "
        f"go on from Python: evo.resume(RUN, models=[evo.Model.from_callable({model.name!r}, {name})])"
    )


def _open_endpoint(model: Model, environment: Mapping[str, str]) -> Provider:
    try:
        from evo.llm.client import EndpointProvider, find_key
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"model {model.name}: expected the package openai, but {error}; {how_to_install()}"
        ) from error
    return EndpointProvider(model, find_key(model, environment))


class _CallableProvider:
    """Asks a Python function, in threads.  What it was asked is worth waiting for: a thread cannot be ended."""

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
