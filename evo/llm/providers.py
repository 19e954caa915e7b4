"""Opens providers, which answer questions: an endpoint, a mailbox, a record of earlier answers, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evo.core import plugins
from evo.core.errors import ConfigError, how_to_install
from evo.core.models import CALLABLE, Answerer, Model
from evo.llm.base import Provider
from evo.llm.callables import CallableProvider
from evo.llm.mailbox import MailboxProvider
from evo.llm.replay import ReplayProvider

# Makes the provider of a model, with its key from the environment.
MakeProvider = Callable[[Model, Mapping[str, str]], Provider]


def open_provider(model: Model, environment: Mapping[str, str], function: Answerer | None = None) -> Provider:
    """The provider of `model`, with its key from `environment`; `function` answers for a model that is one.

    Raises ConfigError if there is no such provider, or something is missing to ask it.
    """
    if function is not None:
        return CallableProvider(model, function)
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
