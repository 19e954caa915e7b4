"""Adds language models to the command line: the options of `evo run`, and the models' side of a run."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError
from evo.core.records import GPU_FACTS
from evo.core.text import quoted

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.llm.models import Model
    from evo.search.engine import Llm
    from evo.storage.store import RunInfo, Store
    from fitness.tasks.task import Task
    from operators.llm.base import LlmContext

# Of those that ask, the ones that work from a seed kernel.
DEFAULT_OPERATORS = ("mutate", "crossover", "repair", "explore")
# Questions in flight if several workers evaluate.
DEFAULT_CONCURRENCY = 8


def add_options(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("language models", "see docs/llm.md")
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="a model at an OpenAI-compatible endpoint; or NAME@mailbox:DIR, replay:RUN; may be repeated. "
        "Its key comes from the environment: EVO_API_KEY_NAME or OPENAI_API_KEY",
    )
    group.add_argument("--models", type=Path, metavar="FILE.toml", help="prices and settings of models")
    group.add_argument(
        "--llm-concurrency", type=int, metavar="K", help=f"questions in flight (default: {DEFAULT_CONCURRENCY}; 1 with "
        "--workers 1, which is repeatable)"
    )  # fmt: skip
    group.add_argument("--max-tokens", type=int, metavar="N", help="hard limit on tokens, of prompts and answers")
    group.add_argument("--max-usd", type=float, metavar="X", help="hard limit on dollars; needs prices")
    group.add_argument(
        "--guidance", metavar="KIND", help="what prompts tell of profiles: digest (default), raw or none"
    )


def settings(arguments: argparse.Namespace, names: Sequence[str], workers: int) -> dict[str, Any]:
    """Fields of RunConfig: the models, and the operators called `names` with the models they ask."""
    from evo.core.settings import GUIDANCE
    from evo.llm.models import read_models
    from evo.search.strategies import STRATEGIES
    from operators.registry import LLM_OPERATORS, get_operators

    models = read_models(arguments.model, arguments.models)
    if models and arguments.operators is None and not STRATEGIES[arguments.strategy].asks:
        names = [*names, *DEFAULT_OPERATORS]
    if STRATEGIES[arguments.strategy].asks and not models:
        raise ConfigError(
            f"--strategy {arguments.strategy}: expected a model to ask, got none; add --model NAME@BASE_URL, or choose "
            f"another strategy"
        )
    check(models)
    get_operators([n.partition("@")[0] for n in names], model=bool(models))
    unknown = [n for n in names if "@" in n and n.partition("@")[0] not in LLM_OPERATORS]
    if unknown:
        raise ConfigError(
            f"--operators: expected NAME@MODEL with a name among {', '.join(LLM_OPERATORS)}, got {', '.join(unknown)}"
        )
    operators: list[str] = []
    for name in names:
        asks = name in LLM_OPERATORS
        operators += [f"{name}@{m.name}" for m in models] if asks else [name]
    if models and not any("@" in o for o in operators):
        raise ConfigError(
            f"--model: expected an operator that asks it, got {', '.join(names)}; "
            f"add one of {', '.join(LLM_OPERATORS)} to --operators, or leave that out"
        )
    slots = arguments.llm_concurrency
    return {
        "operators": tuple(operators),
        "models": models,
        "llm_slots": slots if slots is not None else 1 if workers == 1 or not models else DEFAULT_CONCURRENCY,
        "max_tokens": arguments.max_tokens,
        "max_usd": arguments.max_usd,
        "guidance": GUIDANCE[0] if arguments.guidance is None else arguments.guidance,
        "triton": _triton() if models else "",
    }


def check_limited(
    models: Sequence[Model], max_tokens: int | None, max_usd: float | None, fix: str = "add --model, or leave it out"
) -> None:
    """Raises ConfigError for limits on models if no model is given."""
    for name, limit in (("--max-tokens", max_tokens), ("--max-usd", max_usd)):
        if limit is not None and not models:
            raise ConfigError(f"{name}: expected a model whose answers it limits, got none; {fix}")


def check_unused(arguments: argparse.Namespace, models: Sequence[Model]) -> None:
    """Raises ConfigError for options on models if no model is given."""
    check_limited(models, arguments.max_tokens, arguments.max_usd)
    if arguments.guidance is not None and not models:
        raise ConfigError(
            "--guidance: expected a model whose prompts have profiles, got none; add --model, or leave it out"
        )


def check(models: Sequence[Model]) -> None:
    """Raises ConfigError if something is missing to ask one of them; call it before anything is evaluated."""
    from evo.llm.providers import open_provider

    for model in models:
        open_provider(model, os.environ)


def moved(models: Sequence[Model], specs: Sequence[str]) -> tuple[Model, ...]:
    """The models of a run, those of `specs` at their new endpoints."""
    from evo.llm.models import read_models

    endpoints = {m.name: m.endpoint for m in read_models(specs, None)}
    unknown = sorted(set(endpoints) - {m.name for m in models})
    if unknown:
        known = ", ".join(m.name for m in models) or "none"
        raise ConfigError(f"--model: expected models of the run ({known}), got {', '.join(unknown)}; start another run")
    return tuple(dataclasses.replace(m, endpoint=endpoints.get(m.name, m.endpoint)) for m in models)


def describe(config: RunConfig) -> None:
    """Prints which models are asked, and what that may cost."""
    for model in config.models:
        price = ""
        if model.provider == "openai":
            price = "price unknown: tokens are counted, dollars are not" if model.usd_in is None else (
                f"${model.usd_in:g} and ${model.usd_out:g} a million tokens in and out"
            )  # fmt: skip
        common.say(f"model {model.name}: {model.endpoint}{'; ' + price if price else ''}")
    limits = [f"{config.max_tokens} tokens"] if config.max_tokens else []
    limits += [f"${config.max_usd:g}"] if config.max_usd else []
    uncounted = limits and any(model.provider == "mailbox" for model in config.models)
    common.say(
        f"limits: {' and '.join(limits) or 'none (--max-tokens, --max-usd)'}"
        f"{'; answers of mailboxes are charged nothing' if uncounted else ''}"
    )


def open_llm(store: Store, task: Task) -> Llm:
    """The models' side of the run in `store`."""
    from evo.llm.budget import ModelBudget
    from evo.llm.prompt_scheduler import PromptScheduler
    from evo.llm.queue import open_model_queue
    from evo.search.engine import Llm
    from evo.search.strategies import STRATEGIES
    from operators.registry import LLM_OPERATORS

    config = store.info.config
    context = prompt_context(store.info, task)
    remembers = STRATEGIES[config.strategy].remembers
    prompts = PromptScheduler(
        LLM_OPERATORS, config.models, config.guidance, store.trial, store.profiles, context, remembers
    )
    limits = ModelBudget(config.max_tokens, config.max_usd)
    return Llm(
        prompts, open_model_queue(store.folder, config.models, os.environ, limits, config.llm_slots, _report_failure)
    )


def _report_failure(model: Model, error: str) -> None:
    """Prints the first failure of a model while it is asked again, which may take minutes."""
    spec = quoted(f"{model.name}@{model.endpoint}")
    common.say(
        f"model {model.name} gave no answer, and is asked again: {error}; check it by `evo doctor --model {spec}`"
    )


def say_failures(store: Store) -> None:
    """Prints the first failure of each model that failed."""
    for name, error in store.first_failures().items():
        common.say(f"first failure of model {name}: {error}")


def prompt_context(info: RunInfo, task: Task) -> Callable[..., LlmContext]:
    """Returns a function that makes a prompt's context from its own part and the part common to the run.

    The common part is from the store and not from this machine, so that a replay elsewhere makes the same prompts.
    """
    from fitness.briefing import hardware_facts, rules, task_facts
    from fitness.frontend.target import from_spec
    from operators.llm.base import LlmContext, TaskFacts

    config = info.config

    return functools.partial(
        LlmContext,
        task=TaskFacts(**task_facts(task)),
        hardware=hardware_facts(from_spec(info.environment.get(GPU_FACTS, config.target))),
        rules=rules(task),
        triton=config.triton,
    )


def _triton() -> str:
    """The version of Triton that prompts are written for."""
    from importlib import metadata

    return metadata.version("triton")
