"""The operators by name."""

from __future__ import annotations

from collections.abc import Iterable

from evo.errors import ConfigError
from operators.base import Operator
from operators.params import Params, RandomParams
from operators.recombine import Recombine
from operators.rewrite import RewriteOperator

OPERATORS: dict[str, Operator] = {o.name: o for o in (Params(), RandomParams(), RewriteOperator(), Recombine())}


def get_operators(names: Iterable[str]) -> list[Operator]:
    """The operators called `names`, in that order.  Raises ConfigError, listing the valid names."""
    chosen = list(names)
    unknown = [n for n in chosen if n not in OPERATORS]
    if unknown or not chosen:
        got = ", ".join(map(repr, unknown)) or "none"
        raise ConfigError(
            f"expected operators among {', '.join(OPERATORS)}; got {got}; use at least one of these names"
        )
    return [OPERATORS[n] for n in chosen]
