"""Lists the operators by name: evo's own, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evo.core import plugins
from evo.core.errors import ConfigError
from evo.core.records import OperatorRef
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
# Of these, the ones that work from a seed kernel: a run with models uses them unless it names others.
DEFAULT_LLM_OPERATORS = ("mutate", "crossover", "repair", "explore")


FIRST_KERNEL = "initial"  # writes a kernel from the reference alone, for tasks without a seed kernel


def built_in() -> Mapping[str, Operator | LlmOperator]:
    """Evo's own operators, by name."""
    return {**OPERATORS, **LLM_OPERATORS}


def missing(plugin: Any) -> str:
    """What a plug-in lacks to be an operator, in words; "" for nothing."""
    is_llm = hasattr(plugin, "prompt")
    wanted = ("arity", "repairs", "prompt", "read") if is_llm else ("arity", "__call__")
    protocol = "operators.llm.base.LlmOperator" if is_llm else "operators.base.Operator"
    lacks = [name for name in wanted if not hasattr(plugin, name)]
    if lacks:
        return f"expected what {protocol} has, got an object without {', '.join(lacks)}"
    least = 0 if is_llm else 1
    if plugin.arity not in range(least, 3):
        return f"expected an arity (number of parents) from {least} to 2, got {plugin.arity!r}"
    return ""


def find_operator(name: str) -> Operator | LlmOperator:
    """The operator of that name (without "@MODEL").  Raises ConfigError if there is none."""
    found: Operator | LlmOperator = plugins.resolve("operators", name).value
    return found


def asks_model(name: str) -> bool:
    """Whether the operator of that name asks a model.  Raises ConfigError if there is none."""
    return hasattr(find_operator(name), "prompt")


def asking_names() -> list[str]:
    """The names of the operators that ask a model, as far as they are loaded."""
    return [name for name in plugins.names("operators") if hasattr(plugins.loaded("operators", name), "prompt")]


def get_operators(names: Iterable[str], *, model: bool = False) -> list[Operator]:
    """Returns the operators called `names` that do not ask a model, in that order.

    Raises ConfigError if a name is unknown, or if one needs a model and `model` is False.
    """
    chosen = list(names)
    if not chosen:
        raise ConfigError(
            f"expected operators among {', '.join(plugins.names('operators'))}; got none; use at least one of these "
            f"names"
        )
    found = {name: find_operator(name) for name in chosen}
    asking = [name for name in chosen if hasattr(found[name], "prompt")]
    if asking and not model:
        raise ConfigError(
            f"expected a model for {_plural(asking)} {', '.join(asking)}, got none; give --model NAME@BASE_URL, "
            f"or choose among {', '.join(OPERATORS)}"
        )
    return [found[name] for name in chosen if name not in asking]  # type: ignore[misc]  # what asks no model is a rule


def llm_operators(names: Iterable[str]) -> dict[str, LlmOperator]:
    """Those of the operators of a run that ask a model, by name without "@MODEL"."""
    asking = dict.fromkeys(ref.name for ref in map(OperatorRef.parse, names) if ref.asks)
    return {name: find_operator(name) for name in asking}  # type: ignore[misc]  # of "NAME@MODEL" only these exist


def check_beginning(names: Iterable[str], *, has_kernel: bool = True) -> None:
    """Raises ConfigError if none of the operators ("mutate@NAME" if they ask a model) works on the seed alone.

    has_kernel: False if the task has no seed kernel; then one has to work without a parent.
    """
    chosen = {name: find_operator(name) for name in dict.fromkeys(OperatorRef.parse(n).name for n in names)}
    if not has_kernel:
        if not any(hasattr(operator, "prompt") and operator.arity == 0 for operator in chosen.values()):
            raise ConfigError(
                f"operators: expected one that writes a first kernel, as the task has no kernel.py, got "
                f"{', '.join(chosen)}; add {FIRST_KERNEL}"
            )
        return
    if not any(map(_begins, chosen.values())):
        why = "; ".join(
            f"{name} needs {'a candidate that failed' if operator.arity < 2 else 'two parents'}"
            for name, operator in chosen.items()
        )
        able = [name for name, operator in OPERATORS.items() if _begins(operator)]
        raise ConfigError(
            f"operators: expected one that works on the seed kernel, alone at first, got {', '.join(chosen)} "
            f"({why}); add another, e.g. {able[0]}"
        )


def _begins(operator: Operator | LlmOperator) -> bool:
    return operator.arity < 2 and not getattr(operator, "repairs", False)


def _plural(names: list[str]) -> str:
    return "operator" if len(names) == 1 else "operators"
