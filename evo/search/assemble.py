"""Puts a search together from the settings of its run: operators, models, engine, and the certificate at its end.

Here names become operators: `find_operators` is the one place that looks them up for an engine or a replay.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evo.core.errors import ConfigError, EvoError
from evo.core.models import Answerer, Model
from evo.core.records import GPU_FACTS, Candidate, Certificate, OperatorRef, Trial, Verdict
from evo.core.text import quoted, short
from evo.search.engine import Engine, EngineOutcome, EvaluatorLike, Llm, Observer, Score
from evo.search.listener import Listener, Stop, never
from evo.search.profiling import Profiler, ProfilingEvaluator
from evo.search.strategies import find_strategy, strategy_of
from evo.storage.best import Conclusion, best_source, write_result

if TYPE_CHECKING:
    from evo.core.records import Evaluation
    from evo.core.settings import RunConfig
    from evo.storage.ledger import Account
    from evo.storage.queries import RunInfo
    from evo.storage.store import Store
    from fitness.tasks.task import Task
    from operators.base import Operator
    from operators.llm.base import LlmContext, LlmOperator

NO_KERNEL = "no right kernel was found, so there is nothing to certify"
NO_CERTIFIED = "no kernel that was found passed its certificate"
NO_FUNCTIONS: Mapping[str, Answerer] = MappingProxyType({})


def scorer() -> Score:
    """The function that makes a speedup of an evaluation."""
    from evo.core.records import score

    return score


# --- operators and models of the settings ----------------------------------------------------------------------------


def expand(names: Sequence[str], models: Sequence[Model]) -> tuple[str, ...]:
    """Operators called `names`, those that ask once for each model.  Raises ConfigError for an unknown name."""
    from operators.registry import asks_model, get_operators

    get_operators([OperatorRef.parse(name).name for name in names], model=bool(models))
    expanded: list[str] = []
    for name in names:
        asks = not OperatorRef.parse(name).asks and asks_model(name)
        expanded += [str(OperatorRef(name, m.name)) for m in models] if asks else [name]
    return tuple(expanded)


def default_operators(strategy: str, models: Sequence[Model], *, has_kernel: bool = True) -> tuple[str, ...]:
    """Names of the operators of a strategy, not expanded; with models also those that ask one.

    has_kernel: whether the task has a seed kernel.
    """
    from operators.registry import DEFAULT_LLM_OPERATORS

    kind = find_strategy(strategy)
    operators = (*kind.operators, *(DEFAULT_LLM_OPERATORS if models and not kind.asks else ()))
    return operators if has_kernel else with_first_kernels(operators, strategy)


def with_first_kernels(operators: Sequence[str], strategy: str) -> tuple[str, ...]:
    """Names of the operators for a task without a seed kernel, of which "initial" writes the first kernels.

    Independent samples are all written so.
    """
    from operators.registry import FIRST_KERNEL

    return (FIRST_KERNEL, *(operators if find_strategy(strategy).remembers else ()))


def find_operators(config: RunConfig) -> tuple[dict[str, Operator], dict[str, LlmOperator]]:
    """The operators of a run by name: those that work by rules, and those that ask a model."""
    from operators.registry import get_operators, llm_operators

    rules = [name for name in config.operators if not OperatorRef.parse(name).asks]
    return {o.name: o for o in get_operators(rules)} if rules else {}, llm_operators(config.operators)


def triton_version() -> str:
    """The version of Triton that prompts are written for."""
    return metadata.version("triton")


def check_models(models: Sequence[Model], functions: Mapping[str, Answerer] = NO_FUNCTIONS) -> None:
    """Raises ConfigError if something is missing to ask one of them; called before anything is evaluated."""
    from evo.llm.providers import open_provider

    for model in models:
        open_provider(model, os.environ, functions.get(model.name))


def moved(models: Sequence[Model], specs: Sequence[str | Model]) -> tuple[Model, ...]:
    """The models of a run, those of `specs` at their new endpoints.  Raises ConfigError for a model it has not."""
    from dataclasses import replace

    from evo.llm.models import read_models

    endpoints = {m.name: m.endpoint for m in read_models(specs, None)}
    unknown = sorted(set(endpoints) - {m.name for m in models})
    if unknown:
        known = ", ".join(m.name for m in models) or "none"
        raise ConfigError(f"--model: expected models of the run ({known}), got {', '.join(unknown)}; start another run")
    return tuple(replace(m, endpoint=endpoints.get(m.name, m.endpoint)) for m in models)


def describe_models(config: RunConfig) -> list[str]:
    """Lines that say who is asked, and what that may cost."""
    lines = []
    for model in config.models:
        price = ""
        if model.costs:
            price = "price unknown: tokens are counted, dollars are not" if model.usd_in is None else (
                f"${model.usd_in:g} and ${model.usd_out:g} a million tokens in and out"
            )  # fmt: skip
        lines.append(f"model {model.name}: {model.endpoint}{'; ' + price if price else ''}")
    limits = [f"{config.max_tokens} tokens"] if config.max_tokens else []
    limits += [f"${config.max_usd:g}"] if config.max_usd else []
    uncounted = limits and any(model.provider == "mailbox" for model in config.models)
    charged = "; answers of mailboxes are charged nothing" if uncounted else ""
    return [*lines, f"limits: {' and '.join(limits) or 'none (--max-tokens, --max-usd)'}{charged}"]


def open_llm(
    store: Store,
    task: Task,
    listener: Listener,
    functions: Mapping[str, Answerer] = NO_FUNCTIONS,
    account: Account | None = None,
) -> Llm:
    """The models' side of the run in `store`; `functions` answer for models that are Python functions."""
    from evo.llm.budget import ModelBudget
    from evo.llm.prompt_scheduler import PromptScheduler
    from evo.llm.queue import open_model_queue

    def say_failure(model: Model, error: str) -> None:
        """While it is asked again, which may take minutes."""
        hint = f"check it by `evo doctor --model {quoted(f'{model.name}@{model.endpoint}')}`"
        listener.say(
            f"model {model.name} gave no answer: {error}" if model.name in functions else
            f"model {model.name} gave no answer, and is asked again: {error}; {hint}"
        )  # fmt: skip

    config = store.info.config
    context = prompt_context(store.info, task)
    remembers = strategy_of(config).remembers
    _, operators = find_operators(config)
    scheduler = PromptScheduler(
        operators, config.models, config.guidance, store.trial, store.profiles, context, remembers, store.seed_estimate
    )
    limits = ModelBudget(config.max_tokens, config.max_usd, account)
    run = account.run if account is not None else ""
    queue = open_model_queue(
        store.folder, config.models, os.environ, limits, config.llm_slots, say_failure, functions, run
    )
    return Llm(scheduler, queue)


def prompt_context(info: RunInfo, task: Task) -> Callable[..., LlmContext]:
    """Returns a function that makes a prompt's context from its own part and the part common to the run.

    All of it is from the store and the task's files, nothing from this machine: a prompt is the same wherever the run
    is made again.  Its argument `evaluated` says whether a trial was evaluated before; only then is known what
    evaluates.  Until then the GPU is the one that the target's name stands for, and the version of Triton is unknown.
    The common part draws inputs, which takes seconds: it is made in the background, while the seed kernel is profiled.
    """
    from fitness.briefing.allowed import allowed, rules
    from operators.llm.base import LlmContext

    background = ThreadPoolExecutor(1, thread_name_prefix="facts")

    def made(evaluated: bool) -> dict[str, Any]:
        return {"rules": rules(task), "allowed": allowed()} | _facts(info, task, evaluated)

    @functools.cache
    def common(evaluated: bool) -> Future[dict[str, Any]]:
        return background.submit(made, evaluated)

    def context(*, evaluated: bool, **own: Any) -> LlmContext:
        return LlmContext(**common(evaluated).result(), evaluated=evaluated, **own)

    if info.config.models:  # A replay of a run by rules needs no prompts.
        common(bool(info.environment))
    return context


def _facts(info: RunInfo, task: Task, evaluated: bool) -> dict[str, Any]:
    """Returns what a prompt says of the task and of the machine that evaluates."""
    from fitness.briefing.facts import hardware_facts, task_facts
    from fitness.frontend.target import from_spec
    from operators.llm.base import TaskFacts

    there = info.environment if evaluated else {}
    target = from_spec(there.get(GPU_FACTS, info.config.target))
    gpu = {**there, "name": there["gpu"]} if "copy_bytes_per_s" in there else None
    return {
        "task": TaskFacts(**task_facts(task, target, gpu)),
        "hardware": hardware_facts(target, gpu),
        "arch": target.arch,
        # Runs of earlier versions have it in their settings alone.
        "triton": there.get("triton", info.config.triton) if evaluated else "",
    }


# --- the engine ------------------------------------------------------------------------------------------------------


def profiles(config: RunConfig) -> bool:
    """Returns whether a run's candidates are profiled: if prompts show what limits them."""
    return bool(config.models) and config.guidance != "none"


def make_engine(
    store: Store,
    task: Task,
    first: Evaluation | None,
    evaluator: Profiler | None,
    listener: Listener,
    *,
    observers: Sequence[Observer] = (),
    stop: Stop = never,
    proposals: int | None = None,
    functions: Mapping[str, Answerer] = NO_FUNCTIONS,
    account: Account | None = None,
    workers: int | None = None,
) -> tuple[Engine, Llm | None]:
    """The engine of the run in `store`, with the models it asks, if it does.

    first, evaluator, stop, proposals, account, workers: as Engine takes them.
    """
    config = store.info.config
    if config.baseline != task.timed_against:
        raise ConfigError(
            f"task {task.name}: expected speedups over {task.timed_against.text}, got a run that has them over "
            f"{config.baseline_kind.text}; start another run"
        )
    operators, _ = find_operators(config)
    llm = open_llm(store, task, listener, functions, account) if config.models and proposals != 0 else None
    score = scorer()
    engine_evaluator: EvaluatorLike | None = evaluator
    watching: list[Observer] = []
    if evaluator is not None and profiles(config):
        engine_evaluator = profiling = ProfilingEvaluator(evaluator, score, store.folder, lambda: engine.asks)
        watching.append(profiling)
    watching += observers
    engine = Engine(
        store, first, task.first_source, engine_evaluator, score, operators, watching, stop, proposals, llm, account,
        workers,
    )  # fmt: skip
    return engine, llm


def run_engine(
    store: Store,
    task: Task,
    first: Evaluation | None,
    evaluator: Profiler | None,
    listener: Listener,
    *,
    stop: Stop = never,
    proposals: int | None = None,
    functions: Mapping[str, Answerer] = NO_FUNCTIONS,
) -> EngineOutcome:
    """Makes the engine of the run in `store` and runs it to its end, which `listener` watches."""
    config = store.info.config
    if config.models and proposals != 0:
        for line in describe_models(config):
            listener.say(line)
    if config.models and evaluator is None and proposals != 0 and task.seed_source is not None:
        estimate_seed(store, task, listener)
    with listener.searching(store, evaluator) as (observers, also_stop):
        engine, _ = make_engine(
            store,
            task,
            first,
            evaluator,
            listener,
            observers=observers,
            stop=lambda: stop() or also_stop(),
            proposals=proposals,
            functions=functions,
        )
        return engine.run()


def as_set(task: Task, baseline: str | None, own_share: float | None) -> Task:
    """The task with what it is timed against, and with what it leaves to PyTorch; None for what task.py says."""
    return task.with_baseline(baseline).with_own_share(own_share)


def how_it_begins(task: Task) -> str:
    """What is done first with a task, in words."""
    return f"timing {task.timed_against.text}" if task.seed_source is None else "evaluating its seed kernel"


def estimate_seed(store: Store, task: Task, listener: Listener) -> None:
    """Stores what the compiler and a model of the target say of the seed kernel, for prompts before any evaluation.

    Nothing is executed.  If it cannot be found here, an event says why, and prompts go without it.  Once a question
    was asked nothing is added: all questions of a run before its first evaluation know the same.
    """
    from evo.storage.tables import count_calls
    from fitness.cpu_backend import CpuEvaluator
    from fitness.frontend.target import get_target

    if store.verdicts() or count_calls(store) or store.seed_estimate() is not None:
        return
    listener.say(f"compiling the seed kernel of {task.name}, for prompts: nothing was evaluated yet")
    try:
        with CpuEvaluator(task, get_target(store.info.config.target)) as evaluator:
            store.set_seed_estimate(evaluator.estimate_seed())
    except EvoError as error:
        store.event("unestimated", short(str(error)))
        listener.say(f"prompts go without an estimate of the seed kernel: {short(str(error))}")


# --- the end of a run ------------------------------------------------------------------------------------------------


def conclude(store: Store, certifier: EvaluatorLike | None, why_not: str, listener: Listener) -> Conclusion | None:
    """Certifies the best kernel and writes it to best/; None if trial 0 was not evaluated yet.

    Without a certifier the certificate says `why_not`.
    """
    seed = store.first()
    if seed is None or seed.fitness is None:
        return None
    conclusion = certified(store, seed, certifier, why_not, listener)
    write_result(store.folder, store.info, seed, conclusion)
    return conclusion


def certified(
    store: Store, seed: Trial, evaluator: EvaluatorLike | None, why_not: str, listener: Listener
) -> Conclusion:
    """Returns the fastest trial whose certificate does not fail; trial 0 (`seed`) if all others fail."""
    refused: list[tuple[int, Certificate]] = []
    for trial in store.ranked():
        source = best_source(trial)
        if evaluator is None:
            return Conclusion(trial, Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, why_not))
        stands = trial.index == 0
        try:
            certificate = evaluator.certify(source, seed=store.info.config.seed)
            stands |= certificate.verdict in (Verdict.OK, Verdict.INFRASTRUCTURE)
        except EvoError as error:  # the GPU is gone: what was measured is written all the same
            certificate = Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, short(str(error)))
            stands = True
        except Exception as error:  # a fault of evo's, or a trick that it does not know yet: neither may end the run
            message = short(f"certifying it ended in {type(error).__name__}: {error}")
            certificate = Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, message)
        if stands:
            return Conclusion(trial, certificate, tuple(refused))
        text = f"trial {trial.index} is not certified: {certificate.verdict}: {certificate.message}"
        listener.say(f"{text}; trying the next best")
        store.event("refused", text)
        refused.append((trial.index, certificate))
    assert not seed.proposal.is_kernel  # a seed kernel is among the ranked, and stands
    message = NO_CERTIFIED if refused else NO_KERNEL
    return Conclusion(seed, Certificate(seed.evaluation.candidate, Verdict.INFRASTRUCTURE, message), tuple(refused))
