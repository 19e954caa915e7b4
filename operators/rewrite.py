"""Operator `rewrite`: makes one structural change, chosen among those that apply."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from operators.base import Context, Draft, Parent
from operators.rewrites import arithmetic, configs, grid, launch, loops, memory, reduction, rows, stream
from operators.rewrites.base import Rewrite

_FAMILIES = (launch, configs, loops, reduction, stream, memory, arithmetic, grid, rows)
REWRITES: Mapping[str, Rewrite] = {r.name: r for family in _FAMILIES for r in family.REWRITES}


class RewriteOperator:
    """Applies the first rewrite, in an order drawn from the context's rng, whose precondition holds."""

    name = "rewrite"
    arity = 1

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        for rewrite in _in_order(context.rng):
            source = rewrite.apply(parents[0].source, context.rng)
            if source is not None:
                return Draft(source, f"{rewrite.name}: {rewrite.description}")
        return None


def _in_order(rng: random.Random) -> list[Rewrite]:
    """Drawn one after the other, each by its weight among those left (Efraimidis, Spirakis 2006)."""
    return sorted(REWRITES.values(), key=lambda rewrite: rng.random() ** (1 / rewrite.weight), reverse=True)
