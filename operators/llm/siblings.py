"""Says what was tried and what is being tried, so that answers written at the same time differ."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evo.core.records import Verdict
from operators.llm.answers import NOTE_CHARACTERS
from operators.llm.base import InFlight, Tried
from operators.llm.render import line

SIZES = 4  # most sizes whose speedups a line holds
SIBLINGS, OTHERS = 12, 8  # latest tries on the same parent, and on others, that a prompt describes


@dataclass(frozen=True)
class Siblings:
    """What a prompt says of other answers: one line each."""

    same: str  # finished and unfinished tries on the same parent
    others: str  # finished tries on other parents
    flying: str  # answers that are being written about the same parent


def siblings(parents: Sequence[int], history: Sequence[Tried], flying: Sequence[InFlight]) -> Siblings:
    """Returns what to say to an answer about `parents`, trials by their numbers."""
    first = parents[0] if parents else None
    same = [t for t in history if first in t.parents]
    others = [t for t in history if first not in t.parents and t.verdict is not None]
    beside = [q for q in flying if first in q.parents or not parents]
    return Siblings(
        same="\n".join(map(_tried, same[-SIBLINGS:])),
        others="\n".join(map(_tried, others[-OTHERS:])),
        flying="\n".join(f"- {q.operator}" + (f": {q.direction}" if q.direction else "") for q in beside),
    )


def choose_direction(
    rng: random.Random, directions: Sequence[str], parents: Sequence[int], flying: Sequence[InFlight]
) -> str:
    """Returns one of `directions`, among those that the fewest answers in flight about the same parent look in."""
    if not directions:
        return ""
    used = Counter(q.direction for q in flying if q.parents[:1] == tuple(parents[:1]))
    fewest = min(used[d] for d in directions)
    return rng.choice([d for d in directions if used[d] == fewest])


def _tried(tried: Tried) -> str:
    note = line(tried.note, NOTE_CHARACTERS).strip("` ")
    if tried.verdict is None:
        return f"- {tried.operator}: {note} -> being evaluated"
    if tried.verdict is not Verdict.OK or tried.speedup is None:
        return f"- {tried.operator}: {note} -> {tried.verdict}: {line(tried.message, 120).strip('` ')}"
    before = f", from {tried.parent_speedup:.3f}x" if tried.parent_speedup is not None else ""
    sizes = ", ".join(f"{line(case)} {speedup:.3f}x" for case, speedup in tried.per_case.items())
    by_size = f" ({sizes})" if 1 < len(tried.per_case) <= SIZES else ""
    return f"- {tried.operator}: {note} -> {tried.speedup:.3f}x{before}{by_size}"
