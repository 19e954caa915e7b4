"""What answers a question: an endpoint, a mailbox, or a record of earlier answers."""

from __future__ import annotations

from collections.abc import Mapping

from evo.core.errors import ConfigError, how_to_install
from evo.core.models import Model
from evo.llm.base import Provider
from evo.llm.mailbox import MailboxProvider
from evo.llm.replay import ReplayProvider


def open_provider(model: Model, environment: Mapping[str, str]) -> Provider:
    """The provider of `model`, with its key from `environment`."""
    if model.provider == "mailbox":
        return MailboxProvider(model)
    if model.provider == "replay":
        return ReplayProvider(model)
    try:
        from evo.llm.client import EndpointProvider, find_key
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"model {model.name}: expected the package openai, but {error}; {how_to_install('llm')}"
        ) from error
    return EndpointProvider(model, find_key(model, environment))
