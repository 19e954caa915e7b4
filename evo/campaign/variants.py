"""Defines the ready variants of an ablation: how each changes the settings that all variants share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from evo.core.records import OperatorRef
from evo.core.settings import RunConfig
from evo.search.assemble import expand
from evo.search.strategies import STRATEGIES
from operators import registry

Change = Callable[[RunConfig], RunConfig]


def _keep(test: Callable[[str], bool]) -> Change:
    return lambda c: dataclasses.replace(c, operators=tuple(o for o in c.operators if test(OperatorRef.parse(o).name)))


def _single(name: str) -> bool:
    return registry.find_operator(name).arity < 2


def _no_repair(config: RunConfig) -> RunConfig:
    return _keep(lambda name: not getattr(registry.find_operator(name), "repairs", False))(config)


def _without_models(config: RunConfig) -> RunConfig:
    rules = tuple(o for o in config.operators if not OperatorRef.parse(o).asks)
    return dataclasses.replace(config, operators=rules, models=(), max_tokens=None, guidance="digest")


def _rules(strategy: str) -> Change:
    def change(config: RunConfig) -> RunConfig:
        operators = STRATEGIES[strategy].operators
        return _without_models(dataclasses.replace(config, strategy=strategy, operators=tuple(operators)))

    return change


def _with_models(strategy: str) -> Change:
    return lambda c: dataclasses.replace(
        c, strategy=strategy, operators=expand(STRATEGIES[strategy].operators, c.models)
    )


VARIANTS: dict[str, Change] = {
    "full": lambda c: c,
    "no-crossover": lambda c: _keep(_single)(c),
    # The same number of candidates, in one population.
    "no-islands": lambda c: dataclasses.replace(c, islands=1, population=c.islands * c.population),
    "no-archive": lambda c: dataclasses.replace(c, archive_share=0.0),
    # The inner search needs estimates of drafts; without them structures come untuned.
    "no-memetic": lambda c: dataclasses.replace(c, screen_budget=0, tune_budget=0 if c.models else c.tune_budget),
    "no-surrogate": lambda c: dataclasses.replace(c, surrogate=False),
    "no-progressive": lambda c: dataclasses.replace(c, progressive=False),
    "hillclimb": _rules("hillclimb"),
    "random": _rules("random"),
}
# Those that make sense only if models are asked.
MODEL_VARIANTS: dict[str, Change] = {
    "no-llm": _without_models,
    "no-profile": lambda c: dataclasses.replace(c, guidance="none"),
    "raw-profile": lambda c: dataclasses.replace(c, guidance="raw"),
    "no-repair": _no_repair,
    "best-of-n": _with_models("best-of-n"),
    "tritonforge": _with_models("tritonforge"),
}
