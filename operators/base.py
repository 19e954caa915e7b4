"""Defines operators (parents in, a draft of a new source out) and what they are given."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from evo.core.records import Build, Finding, Timing, Verdict

if TYPE_CHECKING:
    from operators.surrogate import Measured

# Estimated (or measured) speedup over the seed for each source, None if it does not compile.  Results are cached by
# source, so asking twice costs once.
Screen = Callable[[Sequence[str]], list[float | None]]


@dataclass(frozen=True)
class Parent:
    """An evaluated candidate, as operators see it.

    Only operators that repair are given candidates that are not ok; those have a `message`, and no speedup.
    """

    index: int
    source: str
    speedup: float  # over the seed; 0.0 if the verdict is not ok
    per_case: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict = Verdict.OK
    stage: str = "done"
    message: str = ""
    findings: tuple[Finding, ...] = ()
    builds: tuple[Build, ...] = ()
    frozen_source: str = ""  # with the configurations that autotuning chose, if there were several
    timings: tuple[Timing, ...] = ()  # of each tune case; operators by rule are given none


@dataclass(frozen=True)
class Context:
    """The things that an operator may use.  All randomness comes from `rng`, which is keyed by (seed, proposal)."""

    rng: random.Random
    screen: Screen | None = None  # None: no screening possible, do without
    screen_budget: int = 12  # most sources an operator may screen for one draft
    # Of the run, in the order in which they were evaluated; () if times are estimated.
    measured: Sequence[Measured] = ()


@dataclass(frozen=True)
class Draft:
    """A new source with one line on what was done and what it cost (e.g. {"screened": 8}).

    `base`: the position, among the parents, of the one that the source was made from; the others gave parts.
    `spans`: the places of the parts "plan" and "code" in the text of a model's answer, as (first character, one past
    the last); empty without a model.
    """

    source: str
    note: str
    cost: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    base: int = 0

    def base_first(self, parents: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the parents, that of the base first: lineages and diffs follow it."""
        return *parents[self.base : self.base + 1], *parents[: self.base], *parents[self.base + 1 :]


class Operator(Protocol):
    """A way to make new sources.  Operators are pure: same parents, same rng, same draft."""

    name: str
    arity: int  # number of parents

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        """Returns a draft, or None if the operator does not apply to these parents."""
        ...
