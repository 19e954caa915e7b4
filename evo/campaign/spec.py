"""Reads the spec of a campaign (variants x tasks x seeds at equal budget) and keeps the campaign in its folder.

A variant is the search with other settings of a run, for example without a part (`evo/campaign/variants.py`).
The folder of a campaign holds its settings from the start.  A campaign does not continue with another spec, task or
code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.campaign.allocation import EQUAL, read_budgets
from evo.campaign.suite import SuiteSelection
from evo.campaign.variants import MODEL_VARIANTS, VARIANTS
from evo.core.baselines import check_baseline, chosen_baseline
from evo.core.errors import ConfigError, StoreError
from evo.core.files import write_whole
from evo.core.locks import lock
from evo.core.models import Model
from evo.core.settings import (
    GUIDANCE,
    REDRAFTS,
    SEED_RANGE,
    RunConfig,
    check_limit,
    check_share,
    check_type,
    default_islands,
    out_of_range,
)
from evo.llm.models import read_models
from evo.search.assemble import as_set, default_operators, expand, triton_version, with_first_kernels
from evo.search.options import has_kernel
from evo.search.strategies import find_strategy, strategy_of
from evo.storage import folders
from evo.storage.queries import RunInfo
from fitness.tasks.task import task_names
from operators import registry

if TYPE_CHECKING:
    from fitness.tasks.task import Task

FILE = "campaign.json"
LOCK = "campaign.lock"
EARLIER = "earlier_versions"  # in campaign.json: those that the campaign went on from
_EARLIER_KEYS = {"arms": "variants", "arm": "variant"}  # of specs and campaign.json: what earlier versions wrote
_MOST_SEEDS = 10_000
_KEYS = (
    "tasks", "suite", "seeds", "variants", "budget", "target", "models", "models_file", "llm_concurrency", "run",
    "variant", "baseline", "allow_delegation",
)  # fmt: skip

# Settings of a run that the spec may set, for all variants or for one.
SETTINGS = (
    "strategy",
    "operators",
    "islands",
    "population",
    "migrate_every",
    "screen_budget",
    "tune_budget",
    "redrafts",
    "frozen_parents",
    "drops_seed",
    "surrogate",
    "progressive",
    "archive_share",
    "guidance",
    "stop_at_attainable",
)


@dataclass(frozen=True)
class CampaignRun:
    """One run of a campaign; `task` is its name, the rest of it is in the run's configuration."""

    task: str
    variant: str
    seed: int

    def folder(self, campaign: Path) -> Path:
        """Returns its run folder below the campaign's."""
        return runs_folder(campaign) / self.key

    @property
    def key(self) -> str:
        """Its folder below that of the campaign's runs: TASK/VARIANT/seed-N."""
        return f"{self.task}/{self.variant}/seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.task}, {self.variant}, seed {self.seed}"


def runs_folder(campaign: Path) -> Path:
    """Returns the folder of a campaign's runs; earlier versions of evo called runs "cells"."""
    return campaign / ("cells" if (campaign / "cells").exists() else "runs")


@dataclass(frozen=True)
class Spec:
    """What a campaign is to run, checked.  The first variant is the one that the others are compared with.

    tasks: built-in names or folders; empty if they come from `suite`.  llm_slots: questions of a run in flight.
    baseline, allow_delegation: as `evo.search` takes them, for tasks without a seed kernel and for all tasks.
    """

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    variants: tuple[str, ...]
    trials: int
    tokens: int | None
    target: str
    models: tuple[Model, ...]
    base: Mapping[str, Any]  # settings of all variants
    own: Mapping[str, Mapping[str, Any]]  # settings of variants the spec defines, by name
    gpu_seconds: float | None = None
    suite: SuiteSelection | None = None
    llm_slots: int = 1
    baseline: str | None = None
    allow_delegation: float | None = None
    allocation: str = EQUAL  # one of evo.campaign.allocation.ALLOCATIONS

    def config(self, task: str, variant: str, seed: int, device: str) -> RunConfig:
        """Returns the settings of one run.  It has one worker: with one question at a time each proposal knows all
        results before it.

        device: "gpu", "cpu", or "" if the first evaluation will decide it.
        """
        strategy = self.base.get("strategy", "evolve")
        shared = RunConfig(
            task,
            _operators_of(strategy, self.models),
            budget=self.trials,
            seed=seed,
            strategy=strategy,
            islands=default_islands(self.trials, self.models),
            target=self.target,
            models=self.models,
            llm_slots=self.llm_slots,
            max_tokens=self.tokens,
            gpu_seconds=self.gpu_seconds,
            allow_delegation=self.allow_delegation,
            redrafts=REDRAFTS,
            frozen_parents=True,
            drops_seed=True,
            surrogate=True,
            progressive=True,
            triton=triton_version() if self.models else "",
        )
        shared = shared.with_device(device) if device else shared
        shared = _changed(shared, self.base)
        if variant in self.own:
            config = _changed(shared, self.own[variant])
        else:
            config = (VARIANTS | MODEL_VARIANTS)[variant](shared)
        if find_strategy(config.strategy).path:  # its questions follow from each other
            config = dataclasses.replace(config, llm_slots=1)
        strategy_of(config)  # raises ConfigError if it cannot work with these settings
        return config


def read_spec(path: Path) -> Spec:
    """Returns the spec in the TOML file `path`.  Raises ConfigError if it is not valid."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected a campaign as TOML in {path}, got: {error}; docs/ablations.md has one") from error
    for old, new in _EARLIER_KEYS.items():
        if old in raw and new in raw:
            raise ConfigError(f"expected {new}, got {new} and its earlier name {old}; move all below {new}")
        if old in raw:
            raw[new] = raw.pop(old)
    _only(raw, _KEYS, "the spec")
    own = raw.get("variant", {})
    if not isinstance(own, dict):
        raise ConfigError(f"variant: expected tables [variant.NAME], got {own!r:.100}")
    for name in own:
        if name in VARIANTS | MODEL_VARIANTS:
            raise ConfigError(f"variant.{name}: expected a new name, got one of the ready variants; choose another")
        _check_name(name)
    tables = {"run": raw.get("run", {}), **{f"variant.{name}": settings for name, settings in own.items()}}
    for table, settings in tables.items():
        _check_types(settings, table)
    check_type("target", "target", raw.get("target", "sm_90"))
    models = _models(raw, path.parent)
    for table, settings in tables.items():
        _check_settings(settings, table, models)
    trials, tokens, gpu_seconds = _budget(raw.get("budget"), models)
    slots = raw.get("llm_concurrency", 1)
    if problem := out_of_range("llm_slots", slots):
        raise ConfigError(f"llm_concurrency: {problem}; leave it out for one question of a run in flight")
    suite = _suite(raw["suite"], path.parent) if "suite" in raw else None
    if suite is not None and "tasks" in raw:
        raise ConfigError("tasks: expected tasks or a suite, got both; make two campaigns of them")
    spec = Spec(
        tasks=() if suite else tuple(_task(name, path.parent) for name in _names(raw, "tasks")),
        seeds=_seeds(raw.get("seeds")),
        variants=tuple(_names(raw, "variants")),
        trials=trials,
        tokens=tokens,
        target=raw.get("target", "sm_90"),
        models=models,
        base=raw.get("run", {}),
        own=own,
        gpu_seconds=gpu_seconds,
        suite=suite,
        llm_slots=slots,
        baseline=raw.get("baseline"),
        allow_delegation=raw.get("allow_delegation"),
    )
    check_baseline(spec.baseline)
    check_share(spec.allow_delegation)
    known = [*VARIANTS, *MODEL_VARIANTS, *own]
    unknown = [name for name in spec.variants if name not in known]
    if unknown:
        raise ConfigError(
            f"variants: expected names among {', '.join(known)}, got {', '.join(unknown)}; "
            f"define another by its settings in [variant.NAME]"
        )
    asking = [name for name in spec.variants if name in MODEL_VARIANTS]
    if asking and not models:
        raise ConfigError(
            f'variants: expected a model for {", ".join(asking)}, got none; add models = ["NAME@BASE_URL"]'
        )
    return spec


class Campaign:
    """The folder of a campaign; made by `open`.  budgets: of its runs, None if all have the same."""

    def __init__(self, folder: Path, spec: Spec, device: str, tasks: Sequence[str]) -> None:
        """device: "" while nothing was evaluated.  tasks: the names of those in the spec, in its order."""
        self.folder, self.spec, self.device = folder, spec, device
        self.budgets = None if spec.allocation == EQUAL else read_budgets(folder, spec.trials)
        self._paths = dict(zip(tasks, spec.tasks, strict=True))

    @classmethod
    def open(
        cls,
        folder: Path,
        spec: Spec,
        device: str,
        hashes: Mapping[str, str],
        versions: Mapping[str, str],
        *,
        new_versions: bool = False,
    ) -> Campaign:
        """Returns the campaign in `folder`, or begins it there.

        device: "gpu" or "cpu"; "" to evaluate nothing: then it is what the folder says, or still open.  The first
        process that evaluates decides it, and completes `versions`.
        hashes: of the tasks, by name in the spec's order.  If the spec has no tasks, they come later by `add`.
        new_versions: go on with other versions than the campaign began with; the folder's file keeps the earlier ones.
        Raises ConfigError if two variants would be the same search, StoreError if the folder holds another campaign or
        a run.
        """
        campaign = cls(folder, spec, device, list(hashes))
        _check_different(spec, device)
        frozen = campaign._frozen(hashes, versions)
        path = folder / FILE
        if (folder / folders.FILE).exists():
            raise StoreError(
                f"expected a folder for a campaign, but {folder} holds a run ({folders.FILE}); choose another by --out"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with lock(folder / LOCK):  # others may begin it at the same time
                if path.exists():
                    campaign._go_on(_read_frozen(folder), hashes, versions, new_versions)
                else:
                    _write(path, frozen)
        except OSError as error:
            raise StoreError(f"expected to write {path}, got: {error}; choose another folder by --out") from error
        return campaign

    def _go_on(
        self, then: dict[str, Any], hashes: Mapping[str, str], versions: Mapping[str, str], new_versions: bool
    ) -> None:
        """Checks that the campaign is the same; the first process that evaluates writes which device it is."""
        decided, deciding = then.get("device", ""), self.device
        self.device = decided if not deciding else deciding if decided else ""
        known = dict(then.get("versions", {}))
        if not deciding or not decided:  # another build of torch may evaluate what was proposed
            versions_now = {**known, **{name: versions[name] for name in known.keys() & versions.keys()}}
        else:
            versions_now = dict(versions)
        earlier = then.pop(EARLIER, [])
        changed = new_versions and versions_now != known
        if changed:
            earlier, then["versions"] = [*earlier, known], versions_now
        _check_same(self.folder, then, self._frozen(hashes, versions_now))
        decides = bool(deciding) and not decided
        if decides:
            self.device = deciding
            then = self._frozen(then["tasks"] if self.spec.suite or not hashes else hashes, versions)
        if changed or decides:
            _write(self.folder / FILE, {**then, EARLIER: earlier} if earlier else then)

    def add(self, task: str, path: str, hash: str) -> None:
        """Adds a task with its folder.  Raises StoreError if the campaign has another task of this name."""
        file = self.folder / FILE
        with lock(self.folder / LOCK):
            frozen = _read_frozen(self.folder)
            if frozen["tasks"].get(task, hash) != hash:
                raise _other(self.folder, f"task {task}")
            if task not in frozen["tasks"]:  # every process that shares the campaign adds it
                frozen["tasks"][task] = hash
                _write(file, frozen)
        self._paths[task] = path

    def runs(self) -> list[CampaignRun]:
        """Returns all runs, task by task, and within a task all variants of a seed together."""
        return _runs(self._paths, self.spec.seeds, self.spec.variants)

    def runs_of(self, task: str) -> list[CampaignRun]:
        return _runs([task], self.spec.seeds, self.spec.variants)

    def config(self, run: CampaignRun) -> RunConfig:
        """Returns the settings of a run.  Raises ConfigError if it cannot begin without a seed kernel."""
        path = self._paths[run.task]
        config = self.spec.config(path, run.variant, run.seed, self.device).with_budget(self.budget(run))
        return config if has_kernel(path) else _without_kernel(config, self.spec.baseline)

    def budget(self, run: CampaignRun) -> int:
        """Returns the candidates of a run: its equal share, or what was allocated to it so far."""
        return self.spec.trials if self.budgets is None else self.budgets.budget(run.key)

    def as_set(self, task: Task) -> Task:
        """Returns the task with its baseline in this campaign, and with what it leaves to PyTorch."""
        return as_set(task, self.spec.baseline if task.seed_source is None else None, self.spec.allow_delegation)

    def _frozen(self, hashes: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, Any]:
        variants = {}
        for variant in self.spec.variants:
            settings = _settings(self.spec.config("", variant, 0, self.device))
            variants[variant] = {k: v for k, v in settings.items() if k not in ("task", "seed")}
        frozen = {
            "variants": variants,
            "tasks": dict(hashes),
            "seeds": self.spec.seeds,
            "budget": {
                "trials": self.spec.trials,
                "tokens": self.spec.tokens,
                "gpu_seconds": self.spec.gpu_seconds,
            },
            "device": self.device,
            "suite": self.spec.suite.name if self.spec.suite else None,
            "baseline": self.spec.baseline,
            "allocation": self.spec.allocation,
            "versions": dict(versions),
        }
        frozen = json.loads(json.dumps(frozen))  # as it will be read
        return {"hash": hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:16], **frozen}


@dataclass(frozen=True)
class Plan:
    """The runs that a campaign folder plans, on whatever machine."""

    settings: Mapping[str, Mapping[str, Any]]  # by variant: those common to its runs
    tasks: Mapping[str, str]  # hashes by name
    seeds: tuple[int, ...]
    baseline: str | None = None  # of tasks without a seed kernel
    allocation: str = EQUAL

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.settings)

    @property
    def runs(self) -> list[CampaignRun]:
        return _runs(self.tasks, self.seeds, self.variants)


def read_plan(folder: Path) -> Plan:
    """Returns the plan of the campaign in `folder`.  Raises StoreError without one, or if its file is damaged."""
    frozen = _read_frozen(folder)
    return Plan(frozen["variants"], frozen["tasks"], tuple(frozen["seeds"]), frozen.get("baseline"),
                frozen.get("allocation", EQUAL))  # fmt: skip


def check_run(folder: Path, run: CampaignRun, info: RunInfo) -> None:
    """Raises StoreError unless the run with `info` is `run` of the campaign in `folder`.

    `evo resume` may have given it another budget, or a user may have put another run in its place.
    """
    plan = read_plan(folder)
    settings = {"task": "", "seed": run.seed, **plan.settings.get(run.variant, {})}
    try:
        config = RunConfig.from_json(json.dumps(settings))
        config = _without_kernel(config, plan.baseline) if info.config.baseline_kind.pytorch else config
        expected = _comparable(_settings(config))
    except (KeyError, TypeError, ConfigError) as error:
        raise _damaged(folder, f"no settings known here for variant {run.variant} ({error})") from error
    expected["task hash"] = plan.tasks.get(run.task)
    got = _comparable(_settings(info.config)) | {"task hash": info.task_hash}
    free = (() if info.environment else _OF_DEVICE) + (() if plan.allocation == EQUAL else ("budget",))
    differing = [
        f"{name} {got[name]!r} instead of {expected[name]!r}"
        for name in got
        if got[name] != expected[name] and name not in free
    ]
    if differing:
        raise StoreError(
            f"expected the run of {run} in {run.folder(folder)}, got one with {', '.join(differing)}; restore it from "
            f"a copy, or delete that folder and repeat the run"
        )


def _without_kernel(config: RunConfig, baseline: str | None) -> RunConfig:
    """Returns the settings of a run on a task without a seed kernel.  Raises ConfigError if no model is asked."""
    kind = chosen_baseline(baseline, has_kernel=False, task=config.task)
    operators = expand(with_first_kernels(config.operators, config.strategy), config.models)
    return dataclasses.replace(config, operators=operators, baseline=kind.value)


# Settings that may differ between the machines that continue a run: the task's folder (its hash counts), the devices
# that evaluate, and the version of Triton that prompts are written for, which versions say too.
_OF_MACHINE = ("task", "gpus", "ray_address", "triton")
# Runs of earlier versions lack later settings: these do then what was done before.
_BEFORE = {f.name: f.default for f in dataclasses.fields(RunConfig) if f.default is not dataclasses.MISSING}
_OF_DEVICE = ("device", "screen_budget", "tune_budget", "surrogate")  # open until something is evaluated


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the settings that identify a run's search; addresses of models do not."""
    models = [{key: value for key, value in model.items() if key != "endpoint"} for model in settings["models"]]
    return {name: value for name, value in settings.items() if name not in _OF_MACHINE} | {"models": models}


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings as JSON; of a plug-in what it is, not where it lies."""
    settings = dataclasses.asdict(config)
    settings["plugins"] = [{key: p[key] for key in ("kind", "name", "hash")} for p in settings["plugins"]]
    return settings


def _runs(tasks: Iterable[str], seeds: Sequence[int], variants: Sequence[str]) -> list[CampaignRun]:
    return [CampaignRun(task, variant, seed) for task in tasks for seed in seeds for variant in variants]


# --- checks -----------------------------------------------------------------------------------------------------------


def _only(raw: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: expected a table, got {raw!r}")
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise ConfigError(f"{where}: expected keys among {', '.join(known)}, got {', '.join(unknown)}")


def _check_settings(settings: Mapping[str, Any], where: str, models: Sequence[Model]) -> None:
    """Checks what a command line would set too, with the names of a spec; RunConfig checks the rest."""
    for name, value in settings.items():
        if problem := out_of_range(name, value):
            raise ConfigError(f"{where}.{name}: {problem}; set another in the spec, or leave it out")
    if settings.get("guidance", GUIDANCE[0]) not in GUIDANCE:
        raise ConfigError(
            f"{where}.guidance: expected one of {', '.join(GUIDANCE)}, got {settings['guidance']!r}; set one of these"
        )
    strategy = settings.get("strategy")
    if strategy is not None and find_strategy(strategy).asks and not models:
        raise ConfigError(
            f'{where}.strategy: expected a model for {strategy} to ask, got none; add models = ["NAME@BASE_URL"]'
        )


def _check_types(raw: Any, where: str) -> None:
    _only(raw, SETTINGS, where)
    for name, value in raw.items():
        check_type(f"{where}.{name}", name, value)


def _names(raw: Mapping[str, Any], key: str) -> list[str]:
    names = raw.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise ConfigError(f"{key}: expected a list of names, got {names!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{key}: expected each name once, got {', '.join(names)}")
    return names


def _check_name(variant: str) -> None:
    """Checks a variant's name: it is a folder's name, and must not lead out of the campaign's folder."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", variant) or variant in (".", ".."):
        raise ConfigError(
            f"variant.{variant}: expected a name of at most 100 letters, digits, '.', '_' and '-', which is neither "
            f"'.' nor '..', got {variant!r}; choose another: the folders of its runs have this name"
        )


def _task(name: str, folder: Path) -> str:
    """A task as the spec names it: built in, in a folder from here, or in one beside the spec."""
    beside = folder / name
    if name not in task_names() and not Path(name).is_dir() and (beside / "task.py").exists():
        return str(beside)
    return name


def _suite(raw: Any, folder: Path) -> SuiteSelection:
    """The suite of a spec; its paths are from here, or beside the spec."""
    _only(raw, ("name", "path", "only", "seeds", "own_seeds", "gib"), "suite")
    for key in ("name", "path"):
        if not isinstance(raw.get(key), str):
            raise ConfigError(f"suite.{key}: expected a text, got {raw.get(key)!r:.100}; docs/ablations.md has a suite")
    only, gib = raw.get("only"), raw.get("gib")
    only = ",".join(only) if isinstance(only, list) and all(isinstance(name, str) for name in only) else only
    if only is not None and not isinstance(only, str):
        raise ConfigError(f"suite.only: expected names of files, got {only!r:.100}")
    if gib is not None and (not isinstance(gib, int | float) or isinstance(gib, bool)):
        raise ConfigError(f"suite.gib: expected a number, got {gib!r:.100}")

    own = raw.get("own_seeds", True)
    if not isinstance(own, bool):
        raise ConfigError(f"suite.own_seeds: expected true or false, got {own!r:.100}")

    def found(path: str) -> Path:
        return Path(path) if Path(path).exists() else folder / path

    seeds = raw.get("seeds")
    seeds = None if seeds is None else found(str(seeds))
    return SuiteSelection(raw["name"], found(raw["path"]), only, seeds, gib, own)


def _seeds(raw: Any) -> tuple[int, ...]:
    low, high = SEED_RANGE
    if type(raw) is int and 1 <= raw <= _MOST_SEEDS:
        return tuple(range(raw))
    if (
        isinstance(raw, list)
        and 1 <= len(raw) <= _MOST_SEEDS
        and all(type(s) is int and low <= s <= high for s in raw)
        and len(set(raw)) == len(raw)
    ):
        return tuple(raw)
    got = f"a list of {len(raw)}" if isinstance(raw, list) and len(raw) > _MOST_SEEDS else repr(raw)[:100]
    raise ConfigError(
        f"seeds: expected how many, from 1 to {_MOST_SEEDS}, or a list of at most that many different integers from "
        f"{low} to {high}, got {got}; e.g. seeds = 5"
    )


def _budget(raw: Any, models: Sequence[Model]) -> tuple[int, int | None, float | None]:
    """Returns candidates, tokens (if models are asked) and GPU seconds of each run, the last two None without a limit.

    RunConfig checks their ranges.
    """
    if not isinstance(raw, dict) or "trials" not in raw:
        raise ConfigError(f"budget: expected a table with `trials`, the candidates of each run, got {raw!r}")
    _only(raw, ("trials", "tokens", "gpu_seconds"), "budget")
    if problem := out_of_range("budget", raw["trials"]):
        raise ConfigError(f"budget.trials: {problem}; e.g. trials = 24")
    if "tokens" in raw and not models:
        raise ConfigError("budget: expected models if tokens are limited, got none; drop `tokens` or add models")
    for name in ("tokens", "gpu_seconds"):
        check_limit(f"budget.{name}", raw.get(name))
    return raw["trials"], raw.get("tokens"), raw.get("gpu_seconds")


def _models(raw: Mapping[str, Any], folder: Path) -> tuple[Model, ...]:
    """The models of the spec; `models_file` is beside it."""
    if "models" not in raw:
        return ()
    file = raw.get("models_file")
    if file is not None and not isinstance(file, str):
        raise ConfigError(f"models_file: expected the path of a TOML file, got {file!r:.100}")
    file = folder / file if file else None
    return read_models(_names(raw, "models"), file)


def _operators_of(strategy: str, models: Sequence[Model]) -> tuple[str, ...]:
    return expand(default_operators(strategy, models), models)


def _changed(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with other settings; another strategy brings its own operators unless they are set too."""
    changes = dict(settings)
    if "strategy" in changes:
        changes = {"operators": _operators_of(changes["strategy"], config.models)} | changes
    if "operators" in changes:
        changes["operators"] = expand(changes["operators"], config.models)
        registry.check_beginning(changes["operators"])
    return dataclasses.replace(config, **changes)


def _check_different(spec: Spec, device: str) -> None:
    """Raises ConfigError if two variants have the same settings: their runs would be the same."""
    seen: dict[RunConfig, str] = {}
    for variant in spec.variants:
        config = spec.config("", variant, 0, device)
        first = seen.setdefault(config, variant)
        if first != variant:
            raise ConfigError(f"variants: {first} and {variant} have the same settings here; leave one out")


def _check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    free = {"hash"} if now["tasks"] else {"hash", "tasks"}  # tasks are added one by one
    then, now = ({**frozen, "variants": _variants(frozen)} for frozen in (then, now))
    changed = [key for key in now if then.get(key) != now[key] and key not in free]
    if changed:
        before, after = _hashes(then), _hashes(now)
        words = [f"{key}{_in_words(then.get(key), now[key])}" for key in changed]
        words += [
            f"{name} (hash {before.get(name, 'none')} then, {after.get(name, 'none')} now)"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        raise _other(folder, ", ".join(words))


def _variants(frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variants with the settings that count, in their order."""
    try:
        return {name: _comparable({**_BEFORE, **settings}) for name, settings in frozen["variants"].items()}
    except (KeyError, TypeError, AttributeError):  # of another version
        return dict(frozen["variants"])


def _in_words(then: Any, now: Any) -> str:
    """Returns what changed, if it can be said in a few words."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        return f" ({', '.join(f'{key}{_in_words(then.get(key), now.get(key))}' for key in keys)})" if keys else ""
    return f" expected {then!r:.60}, got {now!r:.60}"


def _hashes(frozen: Mapping[str, Any]) -> dict[str, str]:
    """Returns the hashes of the plug-ins of all variants, by kind and name."""
    records = [record for variant in frozen["variants"].values() for record in variant.get("plugins", ())]
    return {f"{record['kind']} {record['name']}": record["hash"] for record in records}


def _other(folder: Path, changed: str) -> StoreError:
    return StoreError(
        f"cannot continue the campaign in {folder}: {changed} differ from when it was started, so its runs could "
        f"not be compared; restore them, or choose another folder by --out; if versions alone differ, --new-versions "
        f"goes on with the new ones"
    )


def _read_frozen(folder: Path) -> dict[str, Any]:
    """Returns the content of campaign.json in `folder`.  Raises StoreError if it is missing or damaged."""
    path = folder / FILE
    try:
        frozen = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"expected a campaign in {folder}, found no {FILE}; name the folder of one, or start one by a spec"
        ) from error
    except OSError as error:
        raise StoreError(f"expected to read {path}, got: {error}; check its permissions") from error
    except ValueError as error:
        raise _damaged(folder, f"no JSON ({error})") from error
    if isinstance(frozen, dict):
        frozen = {_EARLIER_KEYS.get(key, key): value for key, value in frozen.items()}
    kinds = {"variants": (dict, dict), "tasks": (dict, str), "seeds": (list, int)}
    for key, (kind, of) in kinds.items():
        value = frozen.get(key) if isinstance(frozen, dict) else None
        values = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(isinstance(v, of) for v in values):
            raise _damaged(folder, f"no {key} as a campaign has them")
    return dict(frozen)


def _damaged(folder: Path, found: str) -> StoreError:
    return StoreError(
        f"{folder / FILE} is damaged: expected what evo wrote when the campaign was started, got {found}; restore it "
        f"from a copy, or start the campaign in another folder"
    )


def _write(path: Path, frozen: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(frozen, indent=1) + "\n")
