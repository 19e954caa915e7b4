"""Reads the language models of a run, as the command line and a TOML file name them.

A model is given as `NAME@ENDPOINT` or as the name of a table in a TOML file; an endpoint is the base URL of a server
that speaks OpenAI's protocol, `mailbox:DIR` or `replay:PATH`.  Keys are no part of it: they stay in the environment.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError
from evo.core.models import MODEL_FORMS, Model
from evo.llm.replay import recorded_models


def read_models(specs: Sequence[str], file: Path | None) -> tuple[Model, ...]:
    """The models of `--model`, with their settings in `file`; sorted by name, so that their order decides nothing."""
    tables = _read_tables(file) if file is not None else {}
    models = [model for spec in specs for model in _read_spec(spec, tables)]
    names = [m.name for m in models]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"--model: expected each name once, got {', '.join(twice)} twice; give one another name")
    return tuple(sorted(models, key=lambda m: m.name))


def _read_spec(spec: str, tables: Mapping[str, Mapping[str, Any]]) -> list[Model]:
    if spec.startswith("replay:"):
        return recorded_models(Path(spec.partition(":")[2]).resolve())
    name, at, endpoint = ("mailbox", "@", spec) if spec.startswith("mailbox:") else spec.partition("@")
    settings = dict(tables.get(name, {}))
    if at:
        settings["endpoint"] = endpoint
    if "endpoint" not in settings:
        known = f"; tables in the file: {', '.join(tables) or 'none'}" if tables else ""
        raise ConfigError(f"--model: expected {MODEL_FORMS}, got {spec!r}{known}; add the endpoint, or --models FILE")
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
        raise ConfigError(f"--models: expected a TOML file at {file}, got: {error}; mend it or its path") from error
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f'--models: expected tables [models."NAME"] in {file}, got none; see docs/llm.md')
    return tables
