"""What answers a question: an endpoint, a mailbox, or a record of earlier answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evo.core import plugins
from evo.core.errors import ConfigError, EvoError, how_to_install
from evo.llm.budget import Bill
from evo.llm.models import Model
from evo.storage.model_calls import ModelAnswer
from operators.llm.base import Prompt


class LlmError(EvoError):
    """A model that cannot be asked: a wrong key or name, an answer that a record lacks, too many failures."""


class Failed(Exception):
    """An attempt without an answer; another may succeed.

    `bill`: what it cost (None: not known, so it may have cost all that was reserved); `wait_s`: how long the endpoint
    asks to be left alone.
    """

    def __init__(self, message: str, bill: Bill | None = None, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.bill, self.wait_s = bill, wait_s


@dataclass(frozen=True)
class Request:
    """One attempt.  `repeat` counts earlier answers to the same prompt."""

    number: int  # of the call
    operator: str
    prompt: Prompt
    repeat: int = 0


class Provider(Protocol):
    """Answers requests, several at once.  `paid`: what is under way costs money, so it is worth waiting for."""

    paid: bool

    @property
    def parameters(self) -> Mapping[str, Any]:
        """As they are stored with each question."""
        ...

    async def ask(self, request: Request) -> ModelAnswer:
        """The answer.  Raises Failed where another attempt may succeed, LlmError where none will."""
        ...

    async def close(self) -> None: ...


# Makes the provider of a model, with its key from the environment.
MakeProvider = Callable[[Model, Mapping[str, str]], Provider]


def open_provider(model: Model, environment: Mapping[str, str]) -> Provider:
    """The provider of `model`, with its key from `environment`.

    Raises ConfigError if there is no such provider, or something is missing to ask it.
    """
    made: MakeProvider = plugins.resolve("providers", model.provider).value
    return made(model, environment)


def built_in() -> Mapping[str, MakeProvider]:
    """What makes evo's own providers, by what a model's endpoint begins with; "openai" stands for URLs."""
    return {"openai": _open_endpoint, "mailbox": _open_mailbox, "replay": _open_replay}


def missing(plugin: Any) -> str:
    """What a plug-in lacks to make providers, in words; "" for nothing."""
    if not callable(plugin):
        return f"expected a class or function of a Model and the environment, got {type(plugin).__name__}"
    wanted = ("paid", "parameters", "ask", "close")
    lacks = [name for name in wanted if isinstance(plugin, type) and not hasattr(plugin, name)]
    return f"expected what evo.llm.providers.Provider has, got a class without {', '.join(lacks)}" if lacks else ""


def _open_mailbox(model: Model, environment: Mapping[str, str]) -> Provider:
    from evo.llm.mailbox import MailboxProvider

    return MailboxProvider(model)


def _open_replay(model: Model, environment: Mapping[str, str]) -> Provider:
    from evo.llm.replay import ReplayProvider

    return ReplayProvider(model)


def _open_endpoint(model: Model, environment: Mapping[str, str]) -> Provider:
    try:
        from evo.llm.client import EndpointProvider, find_key
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"model {model.name}: expected the package openai, but {error}; {how_to_install('llm')}"
        ) from error
    return EndpointProvider(model, find_key(model, environment))
