"""Settings of a run as `evo.search` and the commands take them, checked and made a RunConfig."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from evo.core import plugins
from evo.core.baselines import check_baseline, chosen_baseline
from evo.core.errors import ConfigError
from evo.core.models import Answerer, CallableModel, Model
from evo.core.records import OperatorRef
from evo.core.settings import (
    DEFAULT_CONCURRENCY,
    GUIDANCE,
    REDRAFTS,
    SEED_RANGE,
    STOP_AT,
    RunConfig,
    default_islands,
    share_to_stop,
)
from evo.llm.models import read_models, split_models
from evo.search import assemble, evaluators
from evo.search.strategies import Strategy, find_strategy, strategy_of
from fitness.tasks.task import Task
from operators.base import Operator
from operators.llm.base import LlmOperator

AnyTask = str | os.PathLike[str] | Task
AnyModel = str | Model | CallableModel
AnyOperator = str | Operator | LlmOperator  # a name, or an instance
AnyStrategy = str | Strategy | type[Strategy]


class Settings(TypedDict, total=False):
    """Settings of a run, with the names and meanings that `search` has."""

    budget: int
    seed: int
    strategy: AnyStrategy
    operators: Sequence[AnyOperator] | None
    islands: int | None
    workers: int | None
    target: str
    gpus: int | str | None
    ray_address: str | None
    gpu_seconds: float | None
    screen_budget: int | None
    models: Sequence[AnyModel]
    models_file: str | os.PathLike[str] | None
    llm_concurrency: int | None
    max_tokens: int | None
    max_usd: float | None
    guidance: str | None
    baseline: str | None
    allow_delegation: float | None
    stop_at_attainable: float | str | None
    progressive: bool


@dataclass(frozen=True)
class RequestedSettings:
    """Settings as they were asked for: checked, before it is known what evaluates."""

    config: RunConfig
    functions: Mapping[str, Answerer]
    workers: int | None
    screen_budget: int | None


def read_settings(task: AnyTask, settings: Settings, *, proposes: bool = True) -> RequestedSettings:
    """Returns the settings of a search, checked.

    proposes: False if only what is pending is evaluated: then operators and models are those of the run.
    Raises ConfigError.
    """
    from fitness.devices import check_address, check_gpus
    from fitness.frontend.target import get_target
    from operators.registry import check_beginning

    check_baseline(settings.get("baseline"))
    strategy = plugins.resolve("strategies", settings.get("strategy", RunConfig.strategy)).name
    given_workers, screen_budget = default_workers(strategy, settings.get("workers")), settings.get("screen_budget")
    workers = evaluators.workers(given_workers)
    target, gpus = settings.get("target", RunConfig.target), gpus_text(settings.get("gpus"))
    get_target(target)
    check_gpus(gpus)
    check_address(settings.get("ray_address"))
    stored, functions = split_models(settings.get("models", ()))
    file = settings.get("models_file")
    models = read_models(stored, None if file is None else Path(file))
    kernel = not proposes or has_kernel(task)
    if not kernel and not models:
        raise ConfigError(
            f"TASK: expected a kernel.py in {_stored_name(task)} to start from, or a model that writes the first "
            "kernel, got neither; add --model NAME@BASE_URL (docs/llm.md), or a kernel"
        )
    wanted = settings.get("baseline")
    baseline = chosen_baseline(wanted, has_kernel=kernel and (proposes or wanted is None), task=_stored_name(task))
    operators = _operators(settings.get("operators"), strategy, models, kernel)
    assemble.check_models(models, functions)
    slots, guidance = settings.get("llm_concurrency"), settings.get("guidance")
    budget, islands = settings.get("budget", RunConfig.budget), settings.get("islands")
    config = RunConfig(
        task=_stored_name(task),
        budget=budget,
        seed=settings.get("seed", RunConfig.seed),
        strategy=strategy,
        islands=default_islands(budget, models) if islands is None else islands,
        workers=workers,
        target=target,
        operators=operators,
        models=models,
        llm_slots=slots if slots is not None else 1 if workers == 1 or not models else DEFAULT_CONCURRENCY,
        max_tokens=settings.get("max_tokens"),
        max_usd=settings.get("max_usd"),
        guidance=GUIDANCE[0] if guidance is None else guidance,
        baseline=baseline.value,
        allow_delegation=settings.get("allow_delegation"),
        triton=assemble.triton_version() if models else "",
        gpus=gpus,
        ray_address=settings.get("ray_address"),
        gpu_seconds=settings.get("gpu_seconds"),
        stop_at_attainable=share_to_stop(settings.get("stop_at_attainable", STOP_AT)),
        screen_budget=RunConfig.screen_budget if screen_budget is None else screen_budget,
        redrafts=REDRAFTS,
        frozen_parents=True,
        drops_seed=True,
        surrogate=True,
        progressive=settings.get("progressive", True),
    )
    strategy_of(config)  # raises ConfigError if it cannot work with these settings
    check_beginning(config.operators, has_kernel=kernel)
    return RequestedSettings(config, functions, given_workers, screen_budget)


def gpus_text(gpus: int | str | None) -> str | None:
    """Numbers of GPUs as --gpus takes them."""
    return None if gpus is None else str(gpus)


def default_workers(strategy: str, given: int | None) -> int | None:
    """One for strategies that are a single path, unless another number was given."""
    return 1 if find_strategy(strategy).path and given is None else given


def _operators(
    given: Sequence[AnyOperator] | None, strategy: str, models: Sequence[Model], has_kernel: bool
) -> tuple[str, ...]:
    """Names of operators, those that ask a model once for each: the given ones, or the strategy's."""
    from operators.registry import asking_names, asks_model, get_operators

    if isinstance(given, str):
        raise ConfigError(f"operators: expected a list of names, got {given!r}; write [{given!r}]")
    if find_strategy(strategy).asks and not models:
        raise ConfigError(
            f"--strategy {strategy}: expected a model to ask, got none; add --model NAME@BASE_URL, or choose "
            f"another strategy"
        )
    default = assemble.default_operators(strategy, models, has_kernel=has_kernel)
    names = default if given is None else tuple(map(_operator_name, given))
    get_operators([OperatorRef.parse(n).name for n in names], model=bool(models))
    no_asker = [n for n in names if (ref := OperatorRef.parse(n)).asks and not asks_model(ref.name)]
    if no_asker:
        raise ConfigError(
            f"--operators: expected NAME@MODEL with a name among {', '.join(asking_names())}, got {', '.join(no_asker)}"
        )
    operators = assemble.expand(names, models)
    if models and not any(OperatorRef.parse(o).asks for o in operators):
        raise ConfigError(
            f"--model: expected an operator that asks it, got {', '.join(names)}; "
            f"add one of {', '.join(asking_names())} to --operators, or leave that out"
        )
    return operators


def _operator_name(operator: AnyOperator) -> str:
    """The name of an operator; an instance is made known by its name."""
    return operator if isinstance(operator, str) else plugins.resolve("operators", operator).name


def check_unused(config: RunConfig, settings: Settings) -> None:
    """Raises ConfigError for settings about models in a search without models."""
    check_limited(config.models, settings.get("max_tokens"), settings.get("max_usd"))
    if settings.get("guidance") is not None and not config.models:
        raise ConfigError(
            "--guidance: expected a model whose prompts have profiles, got none; add --model, or leave it out"
        )


def check_limited(
    models: Sequence[Model], max_tokens: int | None, max_usd: float | None, fix: str = "add --model, or leave it out"
) -> None:
    """Raises ConfigError for limits on models if no model is given."""
    for name, limit in (("--max-tokens", max_tokens), ("--max-usd", max_usd)):
        if limit is not None and not models:
            raise ConfigError(f"{name}: expected a model whose answers it limits, got none; {fix}")


def check_workers(wanted: int | None) -> None:
    """Raises ConfigError for a number of workers below 1."""
    if wanted is not None and (not isinstance(wanted, int) or wanted < 1):
        raise ConfigError(f"workers: expected at least 1, got {wanted!r}; set --workers")


def check_seed(seed: int) -> None:
    """Raises ConfigError for a seed that a store cannot hold."""
    low, high = SEED_RANGE
    if not isinstance(seed, int) or not low <= seed <= high:
        raise ConfigError(f"seed: expected an integer from {low} to {high}, got {seed!r}; set --seed")


def has_kernel(task: AnyTask) -> bool:
    """Whether the task has a seed kernel; also if there is no such task, which loading it will say."""
    if isinstance(task, Task):
        return task.seed_source is not None
    folder = Path(_stored_name(task))
    return not (folder / "task.py").exists() or (folder / "kernel.py").exists()


def _stored_name(task: AnyTask) -> str:
    """How a run stores its task: the name of a built-in one, or the absolute path of a folder.  Loads nothing."""
    from fitness.tasks.task import BUILTIN_TASKS, task_names

    if isinstance(task, Task):
        return task.name if task.folder.parent == BUILTIN_TASKS else str(task.folder)
    name = os.fspath(task)
    if not name:  # a path that is empty is the folder one is in
        raise ConfigError("TASK: expected a built-in task or a task folder, got ''; leave it out for softmax")
    return name if name in task_names() else str(Path(name).resolve())
