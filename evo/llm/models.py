"""Reads the language models of a run: names, endpoints, prices, settings.

A model is given as `NAME@ENDPOINT` or as the name of a table in a TOML file; an endpoint is the base URL of a server
that speaks OpenAI's protocol, `mailbox:DIR` or `replay:PATH`.  Keys are no part of it: they stay in the environment.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evo.core.errors import ConfigError

_PATHS = ("mailbox:", "replay:")
_URLS = ("http://", "https://")
EXPECTED = "NAME@BASE_URL, NAME@mailbox:DIR or NAME@replay:PATH"


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
    answer: str = "rewrite"  # what is asked for: "rewrite" (the whole file) or "edits"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s,@]+", self.name):
            raise ConfigError(f"model {self.name!r}: expected a name without spaces, commas and @; give {EXPECTED}")
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
        _check(self, "answer", "rewrite or edits", self.answer in ("rewrite", "edits"))
        if (self.usd_in is None) != (self.usd_out is None):
            raise ConfigError(f"model {self.name}: expected both usd_in and usd_out, or neither; add the other")

    @property
    def provider(self) -> str:
        """ "openai", "mailbox" or "replay"."""
        return next((p[:-1] for p in _PATHS if self.endpoint.startswith(p)), "openai")

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


def read_models(specs: Sequence[str], file: Path | None) -> tuple[Model, ...]:
    """Returns the models of `--model` with their settings in `file`, sorted by name: their order does not matter."""
    tables = _read_tables(file) if file is not None else {}
    models = [model for spec in specs for model in _read_spec(spec, tables)]
    names = [m.name for m in models]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"--model: expected each name once, got {', '.join(twice)} twice; give one another name")
    return tuple(sorted(models, key=lambda m: m.name))


def _read_spec(spec: str, tables: Mapping[str, Mapping[str, Any]]) -> list[Model]:
    if spec.startswith("replay:"):
        from evo.llm.replay import recorded_models

        return recorded_models(Path(spec.partition(":")[2]).resolve())
    name, at, endpoint = ("mailbox", "@", spec) if spec.startswith("mailbox:") else spec.partition("@")
    settings = dict(tables.get(name, {}))
    if at:
        settings["endpoint"] = endpoint
    if "endpoint" not in settings:
        known = f"; tables in the file: {', '.join(tables) or 'none'}" if tables else ""
        raise ConfigError(f"--model: expected {EXPECTED}, got {spec!r}{known}; add the endpoint, or --models FILE")
    unknown = sorted(set(settings) - {f.name for f in dataclasses.fields(Model)} | set(settings) & {"name"})
    if unknown:
        fields = ", ".join(f.name for f in dataclasses.fields(Model) if f.name != "name")
        raise ConfigError(f"model {name}: expected settings among {fields}; got {', '.join(unknown)}")
    model = Model(name=name, **settings)
    return [model if model.provider == "openai" else _absolute(model)]


def _absolute(model: Model) -> Model:
    return dataclasses.replace(model, endpoint=f"{model.provider}:{model.path.resolve()}")


def _read_tables(file: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("models")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--models: expected a TOML file at {file}, got: {error}; correct it or its path") from error
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f'--models: expected tables [models."NAME"] in {file}, got none; see docs/llm.md')
    return tables


def _check_endpoint(model: Model) -> None:
    if model.endpoint.startswith(_PATHS) and str(model.path) != ".":
        return
    parts = urlsplit(model.endpoint)
    if not model.endpoint.startswith(_URLS) or not parts.hostname:
        raise ConfigError(f"model {model.name}: expected {EXPECTED}, got endpoint {model.endpoint!r}")
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
