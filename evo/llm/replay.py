"""Provider `replay:PATH`: answers of an earlier run by the hash of the prompt, to repeat the run offline.

PATH is a run's folder, or a file with one JSON object a line (`evo calls DIR`).  A prompt asked more than once gets its
answers in the order they were given.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evo.core.errors import ConfigError
from evo.core.models import Bill, Model
from evo.llm.base import LlmError, Request
from evo.storage.model_calls import ModelAnswer
from evo.storage.queries import RunReader

_FIELDS = {"model", "prompt_hash", "answer", "finish"}


class ReplayProvider:
    """Answers as the model of the same name did."""

    paid = False
    parameters: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, model: Model) -> None:
        self._model = model
        self._answers: dict[str, list[ModelAnswer]] = defaultdict(list)
        for row in _rows(model.path):
            if row["model"] == model.name:
                self._answers[row["prompt_hash"]].append(_answer(row))

    async def ask(self, request: Request) -> ModelAnswer:
        found = self._answers.get(request.prompt.hash, [])
        if request.repeat >= len(found):
            known = f"{len(found)} of it" if found else f"{len(self._answers)} other prompts"
            raise LlmError(
                f"expected an answer of {self._model.name} to prompt {request.prompt.hash} ({request.operator}) in "
                f"{self._model.path}, found {known}: this run asks otherwise than the recorded one did; use the same "
                f"versions, task, options, seed, and one worker"
            )
        return found[request.repeat]

    async def close(self) -> None:
        pass


def recorded_models(path: Path) -> list[Model]:
    """Returns the models whose answers `path` holds, each with the settings it had."""
    if path.is_dir():
        with RunReader(path) as run:
            models: Iterable[Model] = run.info.config.models
    else:
        models = [Model(name, f"replay:{path}") for name in sorted({row["model"] for row in _rows(path)})]
    replayed = [dataclasses.replace(m, endpoint=f"replay:{path}") for m in models]
    if not replayed:
        raise ConfigError(f"--model: expected answers of models in {path}, found none; name a run that asked some")
    return replayed


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        with RunReader(path) as run:
            return list(run.answers())
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--model: expected a run's folder or a file of `evo calls` at {path}, got: {error}; check the path"
        ) from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row.keys() >= _FIELDS:
            raise ConfigError(f"{path}, line {number}: expected an object with {', '.join(sorted(_FIELDS))}")
    return rows


def _answer(row: Mapping[str, Any]) -> ModelAnswer:
    """Returns the answer in a row; a file of another program may lack what only the bill needs."""
    tokens_in, tokens_out = row.get("tokens_in"), row.get("tokens_out")
    bill = None if tokens_in is None or tokens_out is None else Bill(tokens_in, tokens_out, row.get("usd"))
    return ModelAnswer(row["answer"], row["finish"], row.get("reasoning") or "", bill)
