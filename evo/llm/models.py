"""Reads the language models of a run, as the command line and a TOML file name them.

A model is given as `NAME@ENDPOINT` or as the name of a table in a TOML file; an endpoint is the base URL of a server
that speaks OpenAI's protocol, `mailbox:DIR`, `replay:PATH`, or `PROVIDER:REST` for the provider of a plug-in.  Keys are
no part of it: they stay in the environment.
From Python a function may be a model (`Model.from_callable`): a run stores its name, never the function.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.core import plugins
from evo.core.errors import ConfigError
from evo.core.models import MODEL_FORMS, Answerer, CallableModel, Model, check_settings
from evo.core.text import did_you_mean
from evo.llm.replay import recorded_models


def split_models(models: Iterable[str | Model | CallableModel]) -> tuple[list[str | Model], dict[str, Answerer]]:
    """The models as a run stores them, and the functions of those that are functions, by name.

    Raises ConfigError for anything else.
    """
    if isinstance(models, str | Model | CallableModel):
        raise ConfigError(f"models: expected a list of models, got {models!r:.100}; write [...] around it")
    stored: list[str | Model] = []
    functions: dict[str, Answerer] = {}
    for model in models:
        if isinstance(model, CallableModel):
            functions[model.model.name] = model.function
            stored.append(model.model)
        elif isinstance(model, str | Model):
            stored.append(model)
        else:
            raise ConfigError(
                f"models: expected {MODEL_FORMS}, Model(...) or Model.from_callable(NAME, FUNCTION), got {model!r:.100}"
            )
    return stored, functions


def read_models(specs: Sequence[str | Model], file: Path | None) -> tuple[Model, ...]:
    """Returns the models of `--model` with their settings in `file`, sorted by name: their order does not matter."""
    if file is not None and not specs:
        raise ConfigError(f"--models {file}: expected --model NAME to ask a model of this file, got none; add one")
    tables = _read_tables(file) if file is not None else {}
    models = [model for spec in specs for model in _read_spec(spec, tables)]
    names = [m.name for m in models]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"--model: expected each name once, got {', '.join(twice)} twice; give one another name")
    return tuple(sorted(models, key=lambda m: m.name))


def _read_spec(spec: str | Model, tables: Mapping[str, Mapping[str, Any]]) -> list[Model]:
    if isinstance(spec, Model):
        return [_absolute(spec)]
    if spec.startswith("replay:"):
        return recorded_models(Path(spec.partition(":")[2]).resolve())
    name, at, endpoint = ("mailbox", "@", spec) if spec.startswith("mailbox:") else spec.partition("@")
    settings = dict(tables.get(name, {}))
    if at:
        settings["endpoint"] = endpoint
    if "endpoint" not in settings:
        known = f"; tables in the file: {', '.join(tables) or 'none'}" if tables else ""
        raise ConfigError(f"--model: expected {MODEL_FORMS}, got {spec!r}{known}; add the endpoint, or --models FILE")
    check_settings(name, settings)
    model = Model(name=name, **settings)
    if model.provider not in plugins.names("providers"):
        raise ConfigError(
            f"model {name}: expected {MODEL_FORMS}, or NAME@PROVIDER:REST of a plug-in, got endpoint "
            f"{model.endpoint!r}{did_you_mean(model.provider, plugins.names('providers'))}"
        )
    return [_absolute(model)]


def _absolute(model: Model) -> Model:
    if model.provider not in ("mailbox", "replay"):
        return model
    return dataclasses.replace(model, endpoint=f"{model.provider}:{model.path.resolve()}")


def _read_tables(file: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("models")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--models: expected a TOML file at {file}, got: {error}; correct it or its path") from error
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f'--models: expected tables [models."NAME"] in {file}, got none; see docs/llm.md')
    return tables
