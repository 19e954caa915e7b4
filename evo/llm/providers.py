"""What answers a question: an endpoint, a mailbox, a record of earlier answers, or a Python function."""

from __future__ import annotations

from collections.abc import Mapping

from evo.core.errors import ConfigError, how_to_install
from evo.core.models import CALLABLE, Answerer, Model
from evo.llm.base import Provider
from evo.llm.mailbox import MailboxProvider
from evo.llm.replay import ReplayProvider


def open_provider(model: Model, environment: Mapping[str, str], function: Answerer | None = None) -> Provider:
    """The provider of `model`, with its key from `environment`; `function` answers for a model that is one.

    Raises ConfigError if something is missing to ask it.
    """
    if model.provider == CALLABLE:
        from evo.llm.callables import CallableProvider

        if function is None:
            name = model.endpoint.partition(":")[2]
            raise ConfigError(
                f"model {model.name}: expected the Python function {name}, which answers for it and is not stored with "
                f"a run; go on from Python: evo.resume(RUN, models=[evo.Model.from_callable({model.name!r}, {name})])"
            )
        return CallableProvider(model, function)
    if model.provider == "mailbox":
        return MailboxProvider(model)
    if model.provider == "replay":
        return ReplayProvider(model)
    try:
        from evo.llm.client import EndpointProvider, find_key
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"model {model.name}: expected the package openai, but {error}; {how_to_install()}"
        ) from error
    return EndpointProvider(model, find_key(model, environment))
