"""Lists the operators by name."""

from __future__ import annotations

from collections.abc import Iterable

from evo.core.errors import ConfigError
from operators.base import Operator
from operators.llm.base import LlmOperator
from operators.llm.operators import LlmCrossover, LlmExplore, LlmInitial, LlmMutate, LlmRepair
from operators.params import Params, RandomParams
from operators.recombine import Recombine
from operators.rewrite import RewriteOperator

OPERATORS: dict[str, Operator] = {o.name: o for o in (Params(), RandomParams(), RewriteOperator(), Recombine())}

# Those that ask a model.
LLM_OPERATORS: dict[str, LlmOperator] = {
    o.name: o for o in (LlmMutate(), LlmCrossover(), LlmRepair(), LlmExplore(), LlmInitial())
}


def get_operators(names: Iterable[str], *, model: bool = False) -> list[Operator]:
    """Returns the operators called `names` that do not ask a model, in that order.

    Raises ConfigError with the valid names if one is unknown, or if one needs a model and `model` is False.
    """
    chosen = _known(names)
    asking = [n for n in chosen if n in LLM_OPERATORS]
    if asking and not model:
        raise ConfigError(
            f"expected a model for {_plural(asking)} {', '.join(asking)}, got none; give --model NAME@BASE_URL, "
            f"or choose among {', '.join(OPERATORS)}"
        )
    return [OPERATORS[n] for n in chosen if n in OPERATORS]


def check_beginning(names: Iterable[str]) -> None:
    """Raises ConfigError if none of the operators ("mutate@NAME" if they ask a model) works on the seed alone."""
    every: dict[str, Operator | LlmOperator] = {**OPERATORS, **LLM_OPERATORS}
    able = [n for n, o in every.items() if o.arity < 2 and not getattr(o, "repairs", False)]
    chosen = list(dict.fromkeys(n.partition("@")[0] for n in names))
    if not set(chosen) & set(able):
        why = "; ".join(
            f"{n} needs {'a candidate that failed' if every[n].arity < 2 else 'two parents'}" for n in chosen
        )
        rules = [n for n in able if n in OPERATORS]
        raise ConfigError(
            f"operators: expected one that works on the seed kernel, alone at first, got {', '.join(chosen)} "
            f"({why}); add another, e.g. {rules[0]}"
        )


def _known(names: Iterable[str]) -> list[str]:
    chosen = list(names)
    valid = [*OPERATORS, *LLM_OPERATORS]
    unknown = [n for n in chosen if n not in valid]
    if unknown or not chosen:
        got = ", ".join(map(repr, unknown)) or "none"
        raise ConfigError(f"expected operators among {', '.join(valid)}; got {got}; use at least one of these names")
    return chosen


def _plural(names: list[str]) -> str:
    return "operator" if len(names) == 1 else "operators"
