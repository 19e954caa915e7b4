"""Provider `mailbox:DIR`: each question is a Markdown file, each answer a file beside it, by a person or a program.

The runs of a campaign may share a folder: names of their requests begin with the run's.
A request appears under its name when it is whole.  An answer is read when it has not changed for `SETTLE_S`; who writes
it under another name and renames it is never read half-way.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.text import storable
from evo.llm.base import Request
from evo.storage.model_calls import ModelAnswer

POLL_S = 0.2
# Writers that do not rename write a few pages at once; they do not pause this long in the middle.
SETTLE_S = 1.0

_HEAD = """\
# Request {name}

Answer the messages below as a language model would, with exactly the text the messages ask for, and nothing else.
The answer belongs into `{name}.answer.md` in this folder. Write it under another name and rename it when it is whole:

    mv {name}.draft.md {name}.answer.md

The run goes on as soon as the answer is there. Answers are judged by compiling, checking and timing what they propose;
do not change any other file.

{run}- operator: {operator}
- model: {model}
- prompt: {hash}
"""


class MailboxProvider:
    """Waits for answers without a limit of time."""

    paid = False
    parameters: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, model: Model, *, poll_s: float = POLL_S, settle_s: float = SETTLE_S) -> None:
        self._model, self._folder = model, model.path
        self._poll_s, self._settle_s = poll_s, settle_s
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"expected to make the mailbox {self._folder}, got: {error}; name another") from error

    async def ask(self, request: Request) -> ModelAnswer:
        name = f"{request.number:04}-{request.prompt.hash[:8]}"
        if request.run:  # runs of a campaign share the folder, and number their questions alike
            name = f"{request.run.replace('/', '.')}.{name}"
        question, answer = (self._folder / f"{name}.{kind}.md" for kind in ("request", "answer"))
        _write(question, self._render(name, request))
        if _state(answer) is None:
            print(f"waiting for an answer to {question}, which says how to give it", file=sys.stderr, flush=True)
        return ModelAnswer(await self._wait(answer), "stop")

    async def close(self) -> None:
        pass

    def _render(self, name: str, request: Request) -> str:
        hash_, operator = request.prompt.hash, request.operator
        run = f"- run: {request.run}\n" if request.run else ""
        parts = [_HEAD.format(name=name, run=run, operator=operator, model=self._model.name, hash=hash_)]
        for message in request.prompt.messages:
            fence = _fence(message.text)
            parts.append(f"## {message.role}\n\n{fence}\n{message.text.rstrip()}\n{fence}\n")
        return "\n".join(parts)

    async def _wait(self, path: Path) -> str:
        """Returns the text of `path`, once the file exists and does not change any more."""
        seen: tuple[int, int] | None = None
        since = 0.0
        while True:
            now, state = time.monotonic(), _state(path)
            if state != seen:
                seen, since = state, now
            elif state is not None and now - since >= self._settle_s:
                text = _read(path)
                if text is not None:
                    return text
            await asyncio.sleep(self._poll_s)


def _write(path: Path, text: str) -> None:
    """Writes `path` as a whole; an existing one stays as it is."""
    if path.exists():
        return
    new = path.with_suffix(".tmp")
    new.write_text(storable(text), encoding="utf-8")
    os.replace(new, path)


def _state(path: Path) -> tuple[int, int] | None:
    """Returns size and time of the last change; None if there is nothing to read yet."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # taken back
        return None


def _fence(text: str) -> str:
    """More backticks than `text` has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
