"""What an operator is: parents in, a draft of a new source out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# Estimated (or measured) speedup over the seed for each source, None where it does not even compile.  Results are
# cached by source, so asking twice costs once.
Screen = Callable[[Sequence[str]], list[float | None]]


@dataclass(frozen=True)
class Parent:
    """An evaluated candidate, as an operator sees it."""

    index: int
    source: str
    speedup: float
    per_case: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What an operator may use.  All randomness comes from `rng`, which is keyed by (seed, proposal)."""

    rng: random.Random
    screen: Screen | None = None  # None: no screening possible, do without
    screen_budget: int = 12  # most sources an operator may screen for one draft


@dataclass(frozen=True)
class Draft:
    """A new source with one line on what was done and what it cost (e.g. {"screened": 8})."""

    source: str
    note: str
    cost: Mapping[str, float] = field(default_factory=dict)


class Operator(Protocol):
    """A way to make new sources.  Operators are pure: same parents, same rng, same draft."""

    name: str
    arity: int  # number of parents

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        """A draft, or None where the operator does not apply to these parents."""
        ...
