"""The protocol of a provider of answers: one attempt in, an answer or an error out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evo.core.errors import EvoError
from evo.core.models import Bill
from evo.storage.model_calls import ModelAnswer
from operators.llm.base import Prompt


class LlmError(EvoError):
    """A model that cannot be asked: a wrong key or name, an answer that a record lacks, too many failures."""


class Failed(Exception):
    """An attempt without an answer.

    `bill`: what it cost (None: unknown, so it may have cost all that was reserved); `wait_s`: seconds for which the
    endpoint wants no request; `again`: whether another attempt at the same question may succeed.
    """

    def __init__(
        self, message: str, bill: Bill | None = None, wait_s: float | None = None, *, again: bool = True
    ) -> None:
        super().__init__(message)
        self.bill, self.wait_s, self.again = bill, wait_s, again


@dataclass(frozen=True)
class Request:
    """One attempt.

    `repeat` counts earlier answers to the same prompt.  `run`: TASK/VARIANT/seed-N in a campaign, else "".
    """

    number: int  # of the call
    operator: str
    prompt: Prompt
    repeat: int = 0
    run: str = ""


class Provider(Protocol):
    """Answers requests, several at once.  `paid`: requests in flight cost money, so it is worth waiting for them."""

    paid: bool

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters that are stored with each question."""
        ...

    async def ask(self, request: Request) -> ModelAnswer:
        """Returns the answer.  Raises Failed if there is none now, LlmError if the model answers no question."""
        ...

    async def close(self) -> None: ...
