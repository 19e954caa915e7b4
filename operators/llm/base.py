"""Defines operators of language models: parents in, a prompt out; an answer in, a draft out.

Between the two lies a model, an agent or a person, minutes and a price; all of that belongs to the engine.  So `prompt`
and `read` are pure functions: same parents, same context, same prompt, and the answer alone decides the draft.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from evo.core.records import Profile, Verdict
from evo.core.settings import GUIDANCE
from operators.base import Draft, Parent

ROLES = ("system", "user", "assistant")
# What is asked for: the whole file, or search/replace blocks (`operators/llm/edits.py`).
ANSWERS = ("rewrite", "edits")


@dataclass(frozen=True)
class Message:
    role: str  # one of ROLES
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, got {self.role!r}")


@dataclass(frozen=True)
class Prompt:
    """The messages that a model gets for one draft.  `direction`: the one that they ask it to look in, "" for none."""

    operator: str
    messages: tuple[Message, ...]
    direction: str = ""

    @cached_property
    def hash(self) -> str:
        """64 hex digits of the messages; equal prompts may share an answer."""
        text = json.dumps([[m.role, m.text] for m in self.messages])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Unreadable:
    """An answer without a source; the next prompt gives the reason."""

    reason: str


@dataclass(frozen=True)
class Tried:
    """An earlier try, as the next prompt describes it."""

    operator: str
    note: str  # what was done, one line.
    verdict: Verdict | None  # None: it is being evaluated
    message: str = ""
    speedup: float | None = None  # over the baseline, if the verdict is ok.
    parent_speedup: float | None = None  # of the best parent, to tell a gain from a loss
    parents: tuple[int, ...] = ()
    per_case: Mapping[str, float] = field(default_factory=dict)  # speedup of each size


@dataclass(frozen=True)
class InFlight:
    """A question that another answer is being written to."""

    operator: str
    parents: tuple[int, ...]
    direction: str  # "" if it has none


@dataclass(frozen=True)
class TaskFacts:
    """The task in words and sources, as `fitness.briefing` gives it.  Tuples of texts have a line a subject."""

    name: str
    entry: str  # the host function that is called
    cases: tuple[str, ...] = ()  # name, role, arguments with shape and dtype
    reference: str = ""  # Python source of the reference, with what it needs; "" if the seed kernel is the reference
    title: str = ""  # what it computes
    parameters: tuple[str, ...] = ()  # of the entry
    says: str = ""  # what the author of the task says of its inputs
    layout: str = ""  # what holds of the memory of all arguments
    values: tuple[str, ...] = ()  # of the arguments, as drawn
    right: tuple[str, ...] = ()  # what a right result is
    seed: str = ""  # source of the seed kernel, if it is the reference
    allowed: tuple[str, ...] = ()  # by this task, beyond what all tasks allow
    baseline: str = "the seed kernel"  # what times are compared with
    # Of each tune case "bytes", "flops" and "least_us", as far as they are known; `bytes_are`: which, if the task does
    # not say them.
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes_are: str = ""


@dataclass(frozen=True)
class LlmContext:
    """The data for a prompt, beside the parents.  All randomness comes from `rng`, keyed by (seed, proposal)."""

    rng: random.Random
    task: TaskFacts
    hardware: Mapping[str, Any]  # what is known of the GPU, by a name in words
    rules: Sequence[str]  # of the gate: "name: what it forbids"
    triton: str  # version that compiles what is evaluated; "" if it is not known yet
    allowed: Sequence[str] = ()  # what every task allows
    evaluated: bool = True  # whether a trial of the run was, before
    arch: int = 90  # of the GPU: compute capability times ten
    history: Sequence[Tried] = ()  # the oldest first
    flying: Sequence[InFlight] = ()  # questions without an answer yet, the oldest first
    profiles: Mapping[int, Profile] = field(default_factory=dict)  # by index of the parent
    baseline: Parent | None = None  # PyTorch, once it was timed, for questions without a parent
    guidance: str = "digest"  # one of GUIDANCE
    answer: str = "rewrite"  # one of ANSWERS

    def __post_init__(self) -> None:
        for name, value, valid in (("guidance", self.guidance, GUIDANCE), ("answer", self.answer, ANSWERS)):
            if value not in valid:
                raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")


class LlmOperator(Protocol):
    """A way to ask a model for a new source."""

    @property
    def name(self) -> str: ...
    @property
    def arity(self) -> int:
        """Number of parents."""
        ...

    @property
    def repairs(self) -> bool:
        """Whether its parent is a candidate that failed."""
        ...

    def prompt(self, parents: Sequence[Parent], context: LlmContext) -> Prompt | None:
        """Returns the prompt; None if the operator does not apply to these parents."""
        ...

    def read(self, answer: str, parents: Sequence[Parent]) -> Draft | Unreadable:
        """The draft in an answer, whatever format it was asked in."""
        ...
