"""A language model as the settings of a run have it, and the bill of its answers.  Keys are no part of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evo.core.errors import ConfigError

_PATHS = ("mailbox:", "replay:")
CALLABLE = "callable"
# Takes the messages of a prompt, {"role": ..., "content": ...} each.  Returns the answer: a text, or an object with
# `text`, `tokens_in` and `tokens_out`.
Answerer = Callable[[list[dict[str, str]]], Any]
# Of a function, or of the provider of a plug-in.
_OTHER = re.compile(r"(?!mailbox:|replay:|openai:|https?:)[A-Za-z0-9][\w.-]*:(?!//)")
_URLS = ("http://", "https://")
MODEL_FORMS = "NAME@BASE_URL, NAME@mailbox:DIR or NAME@replay:PATH"


@dataclass(frozen=True)
class Model:
    """One model.  None: the endpoint's own default, or (for prices) unknown."""

    name: str  # as the run calls it, and in `mutate@NAME`
    endpoint: str
    sent_as: str = ""  # the name the endpoint knows it by; "": `name`
    usd_in: float | None = None  # dollars a million tokens
    usd_out: float | None = None
    max_tokens: int = 16384  # most tokens of one answer, reasoning included
    temperature: float | None = None
    reasoning_effort: str | None = None
    concurrency: int = 1024  # most questions in flight; the run has a limit of its own
    timeout_s: float = 600.0  # of one attempt; a mailbox waits for as long as it takes
    attempts: int = 6
    stream: bool = False  # whether an answer comes in parts, as it is written
    answer: str = "rewrite"  # what is asked for: "rewrite" (the whole file) or "edits"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s,@]+", self.name):
            raise ConfigError(f"model {self.name!r}: expected a name without spaces, commas and @; give {MODEL_FORMS}")
        for field in ("endpoint", "sent_as"):
            _check(self, field, "a text", isinstance(getattr(self, field), str))
        effort = self.reasoning_effort
        _check(self, "reasoning_effort", "a text", effort is None or isinstance(effort, str))
        _check_endpoint(self)
        for field in ("max_tokens", "concurrency", "attempts"):
            _check(self, field, "an integer from 1", _is_integer(getattr(self, field)))
        _check(self, "timeout_s", "a number above 0", _is_number(self.timeout_s) and self.timeout_s > 0)
        for field in ("usd_in", "usd_out", "temperature"):
            value = getattr(self, field)
            _check(self, field, "a number from 0", value is None or (_is_number(value) and value >= 0))
        _check(self, "stream", "true or false", isinstance(self.stream, bool))
        _check(self, "answer", "rewrite or edits", self.answer in ("rewrite", "edits"))
        if (self.usd_in is None) != (self.usd_out is None):
            raise ConfigError(f"model {self.name}: expected both usd_in and usd_out, or neither; add the other")

    @classmethod
    def from_callable(cls, name: str, function: Answerer, **settings: Any) -> CallableModel:
        """A model that is a Python function: `function(messages)` returns the answer.

        function: called with a list of {"role": "system" or "user", "content": TEXT}, in a thread of its own, once at a
        time unless `concurrency` is larger.  It returns a text, or an object with `text`, `tokens_in` and `tokens_out`
        (optional: `usd`, `finish`, `reasoning`).  An exception counts as a failed question.
        settings: other fields of Model, e.g. `concurrency=4`, `timeout_s=60`, `answer="edits"`, `usd_in` and `usd_out`.
        Raises ConfigError if `function` cannot be called, or a setting is wrong.
        """
        if not callable(function):
            raise ConfigError(f"model {name}: expected a function that takes messages, got {function!r:.100}")
        about = getattr(function, "__qualname__", type(function).__qualname__)
        settings = {"concurrency": 1, "attempts": 1, **settings}
        check_settings(name, settings, "endpoint")
        return CallableModel(cls(name, f"{CALLABLE}:{about}", **settings), function)

    @property
    def provider(self) -> str:
        """ "openai", "mailbox", "replay", "callable", or what an endpoint PROVIDER:REST of a plug-in begins with."""
        return "openai" if self.endpoint.startswith(_URLS) else self.endpoint.partition(":")[0]

    @property
    def costs(self) -> bool:
        """Whether its answers may cost money."""
        return self.provider not in ("mailbox", "replay")

    @property
    def path(self) -> Path:
        """The folder or file of a mailbox or a replay."""
        return Path(self.endpoint.partition(":")[2])

    @property
    def key_variable(self) -> str:
        """The environment variable with the key for this model alone."""
        return "EVO_API_KEY_" + re.sub(r"\W", "_", self.name).upper()

    def usd(self, tokens_in: int, tokens_out: int) -> float | None:
        """Returns the dollars that these tokens cost, None if the price is unknown."""
        if self.usd_in is None or self.usd_out is None:
            return None
        return (tokens_in * self.usd_in + tokens_out * self.usd_out) / 1e6


@dataclass(frozen=True)
class CallableModel:
    """A model with the function that answers for it; made by `Model.from_callable`."""

    model: Model
    function: Answerer


def check_settings(name: str, settings: Mapping[str, Any], *without: str) -> None:
    """Raises ConfigError for settings that are no fields of Model, its name and `without` aside."""
    fields = [f.name for f in dataclasses.fields(Model) if f.name not in ("name", *without)]
    unknown = sorted(set(settings) - set(fields))
    if unknown:
        raise ConfigError(f"model {name}: expected settings among {', '.join(fields)}; got {', '.join(unknown)}")


@dataclass(frozen=True)
class Bill:
    """Tokens and dollars of one request.  Dollars: None if the price is unknown."""

    tokens_in: int
    tokens_out: int
    usd: float | None


def _check_endpoint(model: Model) -> None:
    if model.endpoint.startswith(_PATHS) and str(model.path) != ".":
        return
    if _OTHER.match(model.endpoint):  # whether there is such a plug-in is found out when a model is named
        return
    parts = urlsplit(model.endpoint)
    if not model.endpoint.startswith(_URLS) or not parts.hostname:
        raise ConfigError(f"model {model.name}: expected {MODEL_FORMS}, got endpoint {model.endpoint!r}")
    if parts.username is not None or parts.query:
        # Not shown: it may hold the key.
        raise ConfigError(
            f"model {model.name}: expected a base URL without user, password and query, since it is stored with the "
            f"run; put the key into the environment variable {model.key_variable}"
        )


def _check(model: Model, field: str, expected: str, holds: bool) -> None:
    if not holds:
        raise ConfigError(f"model {model.name}: {field}: expected {expected}, got {getattr(model, field)!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
