"""evo as a library, and the one place that puts task, evaluator, operators, models and engine together.

    result = evo.search("softmax", budget=64)
    with evo.Evaluator("softmax") as evaluator:
        evaluation = evaluator.evaluate(source)

The commands of `evo` call these functions too, so settings, checks and errors are the same.  Errors that a user can act
on are EvoErrors: TaskError, ConfigError, StoreError, LlmError.  Ctrl-C during a search raises KeyboardInterrupt; what
is finished is stored, and `resume` goes on.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self, Unpack

from evo.core import plugins, versions
from evo.core.baselines import check_baseline
from evo.core.errors import ConfigError, EvoWarning, StoreError
from evo.core.models import Answerer, Model
from evo.core.records import GPU_FACTS, Candidate, Case, Certificate, Evaluation, StopReason, Verdict
from evo.core.settings import DEFAULT_TASK, STOP_AT, RunConfig, check_share, share_to_stop
from evo.core.text import counted, quoted
from evo.llm.models import split_models
from evo.result import BestKernel, Result, Spending
from evo.search import assemble
from evo.search.engine import EngineOutcome
from evo.search.evaluators import Devices, find_devices
from evo.search.listener import Listener, Stop, listener_of, never
from evo.search.options import (
    AnyModel,
    AnyOperator,
    AnyStrategy,
    AnyTask,
    RequestedSettings,
    Settings,
    check_limited,
    check_seed,
    check_unused,
    check_workers,
    default_workers,
    gpus_text,
    read_settings,
)
from evo.search.profiling import Profiler
from evo.search.replay import DecisionReplay, Redoing
from evo.search.strategies import strategy_of
from evo.search.termination import attained, is_over
from evo.storage.best import read_result
from evo.storage.folders import FILE, keep_task, new_run_folder
from evo.storage.queries import RunInfo, RunReader
from evo.storage.store import Store, check_makeable, check_vacant
from fitness.tasks.task import ChangedTaskError, Task

__all__ = [
    "BestKernel",
    "Case",
    "Evaluation",
    "Evaluator",
    "Model",
    "Result",
    "Spending",
    "Task",
    "Verdict",
    "evaluate_pending",
    "load_task",
    "propose",
    "replay",
    "resume",
    "search",
]

RUNS = Path("runs")  # run folders that were not named are made in it
INTERRUPTED = "the run was interrupted"
NO_EVALUATOR = "no evaluator was at hand, `evo certify TASK best/kernel.py` opens one"


# --- tasks -----------------------------------------------------------------------------------------------------------


def load_task(task: AnyTask, *, expected: str = "") -> Task:
    """The task, validated: its reference was run on the CPU inputs of every case.

    task: the name of a built-in task, a task folder, or a Task made in Python.  The last is written to a folder;
    `Task` says what that asks of its functions.
    expected: the hash that its files must have; else ChangedTaskError is raised, and nothing is executed.
    Warns if the task was changed since it was frozen.  Raises TaskError saying what is wrong with it.
    """
    from fitness.tasks.from_python import load_written
    from fitness.tasks.task import changed_since_frozen
    from fitness.tasks.task import load_task as load

    if isinstance(task, Task):
        return task if task.hash else load_written(task)
    found = load(task, expected=expected)
    if warning := changed_since_frozen(found.folder):
        warnings.warn(warning, EvoWarning, stacklevel=2)
    return found


# --- searches --------------------------------------------------------------------------------------------------------


def search(
    task: AnyTask,
    *,
    budget: int = RunConfig.budget,
    seed: int = RunConfig.seed,
    strategy: AnyStrategy = RunConfig.strategy,
    operators: Sequence[AnyOperator] | None = None,
    models: Sequence[AnyModel] = (),
    gpus: int | str | None = None,
    target: str = RunConfig.target,
    workers: int | None = None,
    islands: int | None = None,
    gpu_seconds: float | None = None,
    screen_budget: int | None = None,
    models_file: str | os.PathLike[str] | None = None,
    llm_concurrency: int | None = None,
    max_tokens: int | None = None,
    max_usd: float | None = None,
    guidance: str | None = None,
    baseline: str | None = None,
    allow_delegation: float | None = None,
    stop_at_attainable: float | str | None = STOP_AT,
    progressive: bool = True,
    ray_address: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: bool | Listener = False,
    stop: Stop = never,
) -> Result:
    """Searches for a faster kernel and returns what was found; `evo run` does the same.

    task: the name of a built-in task, a task folder, or a Task.
    budget: candidates to evaluate, the seed aside.  gpu_seconds: the run ends when a GPU measured for so long, too.
    seed: of all randomness.  With one worker and without a GPU the same seed gives the same run.
    strategy: evolve, random or hillclimb; best-of-n and tritonforge ask models; or a Strategy of your own.
    operators: their names, or operators of your own; None: the strategy's.
    models: "NAME@BASE_URL", "NAME@mailbox:DIR", "replay:RUN", Model(...), or Model.from_callable(NAME, FUNCTION).
    models_file: a TOML file with settings of models.  llm_concurrency: questions in flight.
    max_tokens, max_usd: hard limits on what models cost.  guidance: what prompts say of profiles: digest, raw, none.
    gpus: how many GPUs measure, or "all", or "none" for estimates; None: the first GPU, if it is a target.
    baseline: what a task without a seed kernel is timed against: "eager" (None), "compile", "eager-tf32" or
        "compile-tf32", all of PyTorch.
    allow_delegation: the least share of the work that own kernels do, if PyTorch may do the rest; None: as task.py
        says.
    stop_at_attainable: the run ends once its best kernel has this share of the attainable speed (docs/estimate.md) in
        every tune case; "off" or None: it does not.
    progressive: whether a candidate that a rule made ends at a first look if it is too slow to be a parent or the best.
    target: what to compile for, "sm_90" or "h100".  ray_address: of a Ray cluster that evaluates.
    workers: evaluations at once; None: as the CPUs and GPUs take.
    islands: populations in a ring; None: 3, fewer for few answers of models (docs/settings.md).
    screen_budget: most estimates that an operator may choose a draft by.
    run_dir: where to store the run; None: runs/TASK-NUMBER.
    progress: True prints how the search goes on; or a Listener that hears it.
    stop: called between steps; True ends the search as soon as what is being evaluated is done.

    Raises ConfigError for a wrong setting; TaskError if the task or its seed kernel is at fault; StoreError if the run
    cannot be stored; LlmError if a model cannot be asked.
    """
    task = load_task(task) if isinstance(task, Task) else task
    settings = Settings(
        budget=budget,
        seed=seed,
        strategy=strategy,
        operators=operators,
        models=models,
        gpus=gpus,
        target=target,
        workers=workers,
        islands=islands,
        gpu_seconds=gpu_seconds,
        screen_budget=screen_budget,
        models_file=models_file,
        llm_concurrency=llm_concurrency,
        max_tokens=max_tokens,
        max_usd=max_usd,
        guidance=guidance,
        baseline=baseline,
        allow_delegation=allow_delegation,
        stop_at_attainable=stop_at_attainable,
        progressive=progressive,
        ray_address=ray_address,
    )
    wanted = read_settings(task, settings)
    check_unused(wanted.config, settings)
    listener, folder = listener_of(progress), None if run_dir is None else Path(run_dir)
    if folder is not None:
        check_vacant(folder)
    check_makeable(folder or RUNS)
    task = _as_set(load_task(task), wanted.config)
    devices = find_devices(wanted.config.gpus, ray_address, target)
    _say_devices(devices, listener)
    config = _with_devices(wanted, devices)
    strategy_of(config)  # raises ConfigError if it cannot work with these workers
    listener.say(f"preparing {task.name}: {assemble.how_it_begins(task)}")
    with closing(devices.open(task, target, profiles=assemble.profiles(config))) as evaluator:
        first = evaluator.prepare()
        folder = folder or _new_folder(task.name)
        info = RunInfo(config, task.hash, versions.versions(), evaluator.environment)
        with Store.create(folder, info) as store:
            keep_task(folder, task.folder)
            _search(store, task, first, evaluator, listener, stop, wanted.functions)
    return Result(folder)


def _as_set(task: Task, config: RunConfig) -> Task:
    """Returns the task with the baseline of a run, and with what it leaves to PyTorch."""
    return assemble.as_set(task, config.baseline if config.baseline_kind.pytorch else None, config.allow_delegation)


def _with_devices(wanted: RequestedSettings, devices: Devices) -> RunConfig:
    config = dataclasses.replace(
        wanted.config.with_device(devices.choice.device), workers=devices.workers(wanted.workers)
    )
    if wanted.screen_budget is not None:
        config = dataclasses.replace(config, screen_budget=wanted.screen_budget)
    return config


def _say_devices(devices: Devices, listener: Listener) -> None:
    for line in devices.lines:
        listener.say(line)


def _new_folder(task: str) -> Path:
    """Makes the folder of a run that was not named."""
    try:
        return new_run_folder(RUNS, task)
    except OSError as error:
        made = error.filename or RUNS
        raise ConfigError(f"expected to make {made}, got: {error}; name another folder by --run-dir") from error


def _search(
    store: Store,
    task: Task,
    first: Evaluation,
    evaluator: Profiler,
    listener: Listener,
    stop: Stop,
    functions: Mapping[str, Answerer],
    proposals: int | None = None,
) -> None:
    """Runs the engine, certifies the best kernel and writes it."""
    outcome = assemble.run_engine(
        store, task, first, evaluator, listener, stop=stop, proposals=proposals, functions=functions
    )
    listener.say(f"ended: {outcome.text}, {counted(outcome.spent, 'candidate')} evaluated")
    _say_failures(store, listener)
    interrupted = outcome.reason is StopReason.INTERRUPTED
    assemble.conclude(store, None if interrupted else evaluator, INTERRUPTED if interrupted else NO_EVALUATOR, listener)


def _say_failures(store: Store, listener: Listener) -> None:
    """Says the first failure of each model that failed."""
    for name, error in store.first_failures().items():
        listener.say(f"first failure of model {name}: {error}")


def resume(
    run_dir: str | os.PathLike[str],
    budget: int | None = None,
    *,
    gpu_seconds: float | None = None,
    models: Sequence[AnyModel] = (),
    max_tokens: int | None = None,
    max_usd: float | None = None,
    stop_at_attainable: float | str | None = None,
    gpus: int | str | None = None,
    ray_address: str | None = None,
    workers: int | None = None,
    new_versions: bool = False,
    progress: bool | Listener = False,
    stop: Stop = never,
) -> Result:
    """Goes on with a run that was stopped, or goes further with one that is over; `evo resume` does the same.

    budget, gpu_seconds, max_tokens, max_usd: other limits, in total; None: as before.
    stop_at_attainable: another share, "off" for no end by it; None: as before.
    models: other endpoints for models of the run; a model that is a Python function must be given again.
    new_versions: go on although evo, PyTorch or Triton differ from when the run was started; its history names both.
    gpus, ray_address, workers: None: as before.  progress, stop: as for `search`.
    Raises StoreError if the task, or without `new_versions` a version, is another one than the run was started with;
    else as `search`.
    """
    listener = listener_of(progress)
    folder, gpus = Path(run_dir), gpus_text(gpus)
    stored, functions = split_models(models)
    with RunReader(folder) as run:
        info = run.info
    check_limited(info.config.models, max_tokens, max_usd, fix="leave it out, or start another run with one")
    task = _as_set(load_task(info.config.task), info.config)
    going = _comparable_versions(info)
    with Store.open(folder, task_hash=task.hash, versions=going, new_versions=new_versions) as store:
        config = _with_budget(store, store.info.config, budget)
        limits = {"max_tokens": max_tokens, "max_usd": max_usd, "gpu_seconds": gpu_seconds}
        given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
        if stop_at_attainable is not None:
            given["stop_at_attainable"] = share_to_stop(stop_at_attainable)
        config = dataclasses.replace(config, models=assemble.moved(config.models, stored), **given)
        if store.info.environment:
            config.check_gpu_seconds(config.device)
        spent = store.spent()
        if is_over(store, config) and not store.pending() and not _awaits_certificate(store):
            _check_devices(store, config, gpus, ray_address, workers)
            store.set_config(config)
            listener.say(f"{_why_over(store, config)} goes further")
            _conclude_again(store, listener)
        else:
            assemble.check_models(config.models, functions)
            devices, config = _find_devices(store, config, gpus, ray_address)
            asked = workers is not None or gpus is not None or ray_address is not None
            if workers is not None or (asked and config.workers != 1):  # with one worker it is repeatable, and stays so
                config = dataclasses.replace(config, workers=devices.workers(workers))
            strategy_of(config)  # raises ConfigError if it cannot work with these workers
            listener.say(f"resuming {folder} at {spent} of {config.budget} candidates")
            _go_on(store, task, config, going, devices, listener, stop, functions)
    return Result(folder)


def _awaits_certificate(store: Store) -> bool:
    """Returns whether a run was interrupted before its best kernel could be certified."""
    written = read_result(store)
    return written is not None and written.certificate.message == INTERRUPTED


def _why_over(store: Store, config: RunConfig) -> str:
    """Returns why a run is over, and the command after which it is not."""
    command, spent = f"evo resume {quoted(store.folder)}", store.spent()
    if attained(store.best(), config) and spent < config.budget:
        return f"{StopReason.ATTAINABLE} after {spent} candidates; `{command} --stop-at-attainable off`"
    option = "--budget N" if spent >= config.budget else "--gpu-seconds X"
    return f"all {spent} candidates are evaluated; `{command} {option}`"


def _conclude_again(store: Store, listener: Listener) -> None:
    """Writes best/ of a run that is over once more; what was certified before is kept."""
    from evo.storage.best import write_result

    seed, written = store.first(), read_result(store)
    if written is None:
        assemble.conclude(store, None, NO_EVALUATOR, listener)
    elif seed is not None:
        write_result(store.folder, store.info, seed, written)


def _comparable_versions(info: RunInfo) -> dict[str, str]:
    """Returns the versions that a run of `info` must match here: all once it is evaluated, evo's own before."""
    return versions.versions() if info.environment else {**info.versions, **versions.own_versions()}


def _with_budget(store: Store, config: RunConfig, budget: int | None) -> RunConfig:
    """`config` with another budget of candidates, None for the same.  Raises ConfigError if more is spent."""
    spent = store.spent()
    if budget is not None and budget < spent:
        raise ConfigError(
            f"budget: expected at least the {spent} candidates spent, got {budget}; give more than {spent} to go "
            f"further, or leave it out"
        )
    return config if budget is None else config.with_budget(budget)


def _find_devices(
    store: Store, config: RunConfig, gpus: str | None, ray_address: str | None
) -> tuple[Devices, RunConfig]:
    """What the run is evaluated with from now on, and its settings then.

    The first evaluation decides whether times are measured or estimated, and that stays.
    """
    given = {name: value for name, value in (("gpus", gpus), ("ray_address", ray_address)) if value is not None}
    wanted = dataclasses.replace(config, **given)  # type: ignore[arg-type]  # both are texts
    if store.info.environment:
        wanted.check_gpu_seconds(wanted.device)
        return find_devices(gpus, ray_address, config.target, config), wanted
    devices = find_devices(wanted.gpus, wanted.ray_address, config.target)
    return devices, wanted.with_device(devices.choice.device)


def _check_devices(
    store: Store, config: RunConfig, gpus: str | None, ray_address: str | None, workers: int | None
) -> None:
    """Raises ConfigError for requested devices that are not available, if nothing is left to evaluate."""
    if gpus is not None or ray_address is not None:
        _find_devices(store, config, gpus, ray_address)
    if workers is not None:
        strategy_of(dataclasses.replace(config, workers=workers))


def _go_on(
    store: Store,
    task: Task,
    config: RunConfig,
    going: Mapping[str, str],
    devices: Devices,
    listener: Listener,
    stop: Stop,
    functions: Mapping[str, Answerer],
    proposals: int | None = None,
) -> None:
    """Continues the run in `store`.  All checks are passed: its settings are `config` and its versions `going`."""
    _say_devices(devices, listener)
    with closing(devices.open(task, config.target, profiles=assemble.profiles(config))) as evaluator:
        first = _prepare(store, config, going, evaluator)
        _search(store, task, first, evaluator, listener, stop, functions, proposals)


def _prepare(store: Store, config: RunConfig, going: Mapping[str, str], evaluator: Profiler) -> Evaluation:
    """Returns the evaluation of the seed, and stores that the run continues with `config` and versions `going`.

    The first evaluator of a run is noted in its store, but not its machine: prompts that were made before said what the
    target's name stands for, and those of one run say the same.
    """
    first = evaluator.prepare()
    store.goes_on(config, going)
    if not store.info.environment:
        environment = {name: value for name, value in evaluator.environment.items() if name != GPU_FACTS}
        store.set_evaluator(versions.versions(), environment)
    return first


# --- the halves of a search ------------------------------------------------------------------------------------------

# Settings of RunConfig that may differ each time, or are checked elsewhere.
_FREE = ("task", "budget", "workers", "device", "gpus", "ray_address")
# Options whose names are not those of their fields in RunConfig.
_OPTIONS = {"models": "--model", "llm_slots": "--llm-concurrency", "progressive": "--full"}


def propose(
    run_dir: str | os.PathLike[str],
    count: int,
    task: AnyTask | None = None,
    *,
    progress: bool | Listener = False,
    stop: Stop = never,
    **settings: Unpack[Settings],
) -> EngineOutcome:
    """Stores `count` candidates in `run_dir`, a run or not yet one, and evaluates none; `evo run --propose-only`.

    task: None: the run's, or softmax for a new one; a folder, if that of the run has another path on this machine.
    settings: as for `search`; for a run that exists, the same as before.
    """
    if count < 1:
        raise ConfigError(f"--propose-only: expected a number from 1, got {count}")
    listener, folder = listener_of(progress), Path(run_dir)
    task = load_task(task) if isinstance(task, Task) else task
    wanted = read_settings(_named(folder, task), settings)
    if (folder / FILE).exists():
        loaded, store, config, going = _open_half(folder, task, wanted, settings, proposing=True)
        assemble.check_models(config.models, wanted.functions)
        store.goes_on(config, going)
    else:
        check_unused(wanted.config, settings)
        loaded = _as_set(load_task(DEFAULT_TASK if task is None else task), wanted.config)
        store = Store.create(folder, RunInfo(wanted.config, loaded.hash, versions.own_versions(), {}))
        keep_task(folder, loaded.folder)
    with store:
        outcome = assemble.run_engine(
            store, loaded, None, None, listener, stop=stop, proposals=count, functions=wanted.functions
        )
        pending = len(store.pending())
        listener.say(f"ended: {outcome.text}; {outcome.proposed} candidates proposed, {pending} pending")
        _say_failures(store, listener)
        if pending:
            listener.say(f"evaluate them: evo run --evaluate-only --run-dir {quoted(folder)}")
    return outcome


def evaluate_pending(
    run_dir: str | os.PathLike[str],
    task: AnyTask | None = None,
    *,
    progress: bool | Listener = False,
    stop: Stop = never,
    **settings: Unpack[Settings],
) -> Result | None:
    """Evaluates what is pending in `run_dir` and proposes nothing; `evo run --evaluate-only`.

    task, settings: as for `propose`.  Returns None if nothing was pending.
    """
    listener, folder = listener_of(progress), Path(run_dir)
    task = load_task(task) if isinstance(task, Task) else task
    wanted = read_settings(DEFAULT_TASK if task is None else task, settings, proposes=False)
    loaded, store, config, going = _open_half(folder, task, wanted, settings, proposing=False)
    gpus, ray_address = wanted.config.gpus, wanted.config.ray_address
    workers = default_workers(config.strategy, settings.get("workers"))
    with store:
        if not store.pending():
            _check_devices(store, config, gpus, ray_address, workers)
            store.set_config(config)
            listener.say(f"nothing is pending; propose more: evo run --propose-only N --run-dir {quoted(folder)}")
            return None
        devices, config = _find_devices(store, config, gpus, ray_address)
        config = dataclasses.replace(config, workers=devices.workers(workers))
        strategy_of(config)  # raises ConfigError if it cannot work with these workers
        _go_on(store, loaded, config, going, devices, listener, stop, {}, proposals=0)
    return Result(folder)


def _open_half(
    folder: Path, task: AnyTask | None, wanted: RequestedSettings, settings: Settings, *, proposing: bool
) -> tuple[Task, Store, RunConfig, Mapping[str, str]]:
    """Returns the task and the store of the run in `folder`, its settings and versions, to run half of it."""
    with RunReader(folder) as run:
        info = run.info
    _check_same(folder, wanted.config, info.config, settings)
    loaded = _task_of_half(folder, task, info)
    going = _comparable_versions(info)
    if proposing:
        going = {**info.versions, **versions.own_versions()}
    store = Store.open(folder, task_hash=loaded.hash, versions=going)
    try:
        return loaded, store, _with_budget(store, store.info.config, settings.get("budget")), going
    except BaseException:
        store.close()
        raise


def _check_same(folder: Path, wanted: RunConfig, stored: RunConfig, settings: Settings) -> None:
    """Raises ConfigError for a setting that was given and is not that of the run."""
    given = {"llm_slots" if name == "llm_concurrency" else name for name in settings}
    given |= {"operators"} if settings.get("models") else set()
    # Models first: the names of operators contain theirs.
    for name in ("models", *(field.name for field in dataclasses.fields(stored))):
        old, new = getattr(stored, name), getattr(wanted, name)
        if name in given and name not in _FREE and old != new:
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise ConfigError(
                f"{option}: the run in {folder} was started with {_in_words(name, old, new)}, "
                f"got {_in_words(name, new, old)}; leave it out, or start another run"
            )


def _in_words(name: str, value: Any, other: Any) -> str:
    """Returns the value of a setting in words; other: the value that it differs from."""
    if name == "models":
        return ", ".join(_model_in_words(model, other) for model in value) or "none"
    if name == "progressive":
        return "first looks" if value else "no first looks"
    if isinstance(value, tuple):
        return ",".join(value)
    return "none" if value is None else str(value)


def _model_in_words(model: Model, others: Sequence[Model]) -> str:
    """Returns a model as --model takes it, with the settings in which another model of its name differs."""
    twin = next((other for other in others if other.name == model.name), model)
    fields = [field.name for field in dataclasses.fields(model) if field.name not in ("name", "endpoint")]
    different = [name for name in fields if getattr(model, name) != getattr(twin, name)]
    return " ".join([f"{model.name}@{model.endpoint}", *(f"{name}={getattr(model, name)}" for name in different)])


def _named(folder: Path, task: AnyTask | None) -> AnyTask:
    """The task that a half of a search is about: `task`, or that of the run in `folder`, or softmax."""
    if task is not None:
        return task
    if not (folder / FILE).exists():
        return DEFAULT_TASK
    with RunReader(folder) as run:
        return run.info.config.task


def _task_of_half(folder: Path, task: AnyTask | None, info: RunInfo) -> Task:
    """The task of the run; from where `task` says, as a task's folder may have another path on another machine."""
    stored = info.config.task
    if task is None and Path(stored).is_absolute() and not Path(stored).is_dir():
        raise ConfigError(
            f"the run in {folder} is of the task in {stored}, which is not on this machine; name its folder as TASK"
        )
    loaded = load_task(stored if task is None else task)
    if task is not None and loaded.hash != info.task_hash:
        raise ConfigError(
            f"TASK: the run in {folder} is of {stored}, and {task} is another task or was changed since; "
            f"restore it, or start another run"
        )
    return _as_set(loaded, info.config)


def replay(run_dir: str | os.PathLike[str]) -> list[DecisionReplay]:
    """Makes the decisions of a run again, offline, from its store; each says whether it is the same.

    Raises StoreError if there is no run, or its task has changed.
    """
    folder = Path(run_dir)
    with RunReader(folder) as run:
        info = run.info
        plugins.check_recorded(info.config.plugins, f"cannot replay {folder}")
        try:
            task = _as_set(load_task(info.config.task, expected=info.task_hash), info.config)
        except ChangedTaskError:
            raise StoreError(f"cannot replay {folder}: task {info.config.task} has changed since; restore it") from None
        operators, asking = assemble.find_operators(info.config)
        return list(Redoing(run, operators, asking, assemble.prompt_context(info, task)).decisions())


# --- evaluating without a search -------------------------------------------------------------------------------------


class Evaluator:
    """Evaluates kernels of one task as a search does; use it as a context manager, or call `close`.

    Opening evaluates the seed kernel, which takes seconds.
    """

    def __init__(
        self,
        task: AnyTask,
        *,
        gpus: int | str | None = None,
        target: str = RunConfig.target,
        workers: int | None = None,
        ray_address: str | None = None,
        seed: int = 0,
        baseline: str | None = None,
        allow_delegation: float | None = None,
        progress: bool | Listener = False,
    ) -> None:
        """task, gpus, target, workers, ray_address, baseline, allow_delegation: as for `search`.

        seed: of the random inputs.
        progress: True prints what evaluates; or a Listener that hears it.
        Raises ConfigError for a wrong setting, TaskError if the task or its seed kernel is at fault.
        """
        from fitness.frontend.target import get_target

        check_workers(workers)
        check_seed(seed)
        get_target(target)
        check_baseline(baseline)
        check_share(allow_delegation)
        self.task = assemble.as_set(load_task(task), baseline, allow_delegation)
        devices = find_devices(gpus_text(gpus), ray_address, target)
        _say_devices(devices, listener_of(progress))
        self.description = "; ".join(devices.lines)  # what evaluates, in words
        self.measured = devices.choice.gpus > 0  # whether a GPU measures; else times are estimated
        self.workers = devices.workers(workers)
        self._random_seed = seed
        self._evaluator = devices.open(self.task, target)
        try:
            # The evaluation of the seed kernel, or of PyTorch if the task has none.
            self.seed: Evaluation = self._evaluator.prepare()
        except BaseException:
            self._evaluator.close()
            raise
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="evaluate")

    def evaluate(self, source: str) -> Evaluation:
        """The evaluation of a kernel, given as the text of its file: `verdict`, `speedup`, `message` and more."""
        if not isinstance(source, str):
            raise ConfigError(f"expected the source of a kernel as text, got {source!r:.100}; read its file")
        return self._evaluator.evaluate(Candidate(source), seed=self._random_seed, known={})

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
        """The evaluations of kernels in the order of `sources`, each as soon as it and all before it are ready.

        `workers` are evaluated at once.  Sources are read as workers become free, so there may be any number of them.
        """
        running: deque[Future[Evaluation]] = deque()
        try:
            for source in sources:
                running.append(self._pool.submit(self.evaluate, source))
                if len(running) > self.workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    def certify(self, source: str, evaluation: Evaluation | None = None) -> Certificate:
        """Runs a kernel's own Python on the GPU, on inputs and sizes not used before, and under compute-sanitizer.

        evaluation: that of `source`, if it is known; else it is evaluated first.  What is not ok is not run: the
        certificate then has the verdict of the evaluation.  Without a GPU the verdict is INFRASTRUCTURE.
        """
        evaluation = evaluation or self.evaluate(source)
        if evaluation.verdict is not Verdict.OK:
            message = f"not run, for the kernel is not ok: at stage {evaluation.stage}: {evaluation.message}"
            return Certificate(evaluation.candidate, evaluation.verdict, message)
        return self._evaluator.certify(evaluation.frozen_source or source, seed=self._random_seed)

    def close(self) -> None:
        """Ends the processes that evaluate.  What still runs is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._evaluator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
