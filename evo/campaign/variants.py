"""The ready arms of an ablation: what each makes of the settings that all arms share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from evo.core.records import OperatorRef
from evo.core.settings import RunConfig
from evo.search.assemble import expand
from evo.search.strategies import STRATEGIES
from operators import registry

Arm = Callable[[RunConfig], RunConfig]


def _keep(test: Callable[[str], bool]) -> Arm:
    return lambda c: dataclasses.replace(c, operators=tuple(o for o in c.operators if test(OperatorRef.parse(o).name)))


def _single(name: str) -> bool:
    return registry.find_operator(name).arity < 2


def _no_repair(config: RunConfig) -> RunConfig:
    return _keep(lambda name: not getattr(registry.find_operator(name), "repairs", False))(config)


def _without_models(config: RunConfig) -> RunConfig:
    rules = tuple(o for o in config.operators if not OperatorRef.parse(o).asks)
    return dataclasses.replace(config, operators=rules, models=(), max_tokens=None, guidance="digest")


def _rules(strategy: str) -> Arm:
    def arm(config: RunConfig) -> RunConfig:
        operators = STRATEGIES[strategy].operators
        return _without_models(dataclasses.replace(config, strategy=strategy, operators=tuple(operators)))

    return arm


def _asking(strategy: str) -> Arm:
    return lambda c: dataclasses.replace(
        c, strategy=strategy, operators=expand(STRATEGIES[strategy].operators, c.models)
    )


ARMS: dict[str, Arm] = {
    "full": lambda c: c,
    "no-crossover": lambda c: _keep(_single)(c),
    # As many candidates are kept, in one population.
    "no-islands": lambda c: dataclasses.replace(c, islands=1, population=c.islands * c.population),
    "no-archive": lambda c: dataclasses.replace(c, archive_share=0.0),
    # Without estimates of drafts there is no inner search: structures come untuned.
    "no-memetic": lambda c: dataclasses.replace(c, screen_budget=0, tune_budget=0 if c.models else c.tune_budget),
    "no-surrogate": lambda c: dataclasses.replace(c, surrogate=False),
    "hillclimb": _rules("hillclimb"),
    "random": _rules("random"),
}
# Those that make sense only where models are asked.
MODEL_ARMS: dict[str, Arm] = {
    "no-llm": _without_models,
    "no-profile": lambda c: dataclasses.replace(c, guidance="none"),
    "raw-profile": lambda c: dataclasses.replace(c, guidance="raw"),
    "no-repair": _no_repair,
    "best-of-n": _asking("best-of-n"),
    "tritonforge": _asking("tritonforge"),
}
