"""A campaign: arms x tasks x seeds at equal budget, as a spec file says it and as a folder keeps it.

An arm is the search with a part taken away or put in its place (`evo/campaign/variants.py`): other settings of a run.
What a campaign is gets frozen into its folder when it starts: going on with another spec, task or code is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.campaign.variants import ARMS, MODEL_ARMS
from evo.core.errors import ConfigError, StoreError
from evo.core.locks import lock
from evo.core.models import Model
from evo.core.settings import GUIDANCE, REDRAFTS, SEEDS, RunConfig, check_limit, check_type, out_of_range
from evo.llm.models import read_models
from evo.search.assemble import default_operators, expand, triton_version
from evo.search.strategies import find_strategy, strategy_of
from evo.storage import folders
from evo.storage.queries import RunInfo
from fitness.tasks.task import task_names
from operators import registry

FILE = "campaign.json"
LOCK = "campaign.lock"
_MOST_SEEDS = 10_000

# Settings of a run that the spec may set, for all arms or for one.
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
    "surrogate",
    "archive_share",
    "guidance",
)


@dataclass(frozen=True)
class Cell:
    """One run of a campaign; `task` is its name, the rest of it is in the run's configuration."""

    task: str
    arm: str
    seed: int

    @property
    def path(self) -> Path:
        """Of its run folder, below the campaign's."""
        return Path("cells", self.task, self.arm, f"seed-{self.seed}")

    def __str__(self) -> str:
        return f"{self.task}, {self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Spec:
    """A spec file, checked.  The first arm is the one that the others are compared with."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[str, ...]
    trials: int
    tokens: int | None
    target: str
    models: tuple[Model, ...]
    base: Mapping[str, Any]  # settings of all arms
    own: Mapping[str, Mapping[str, Any]]  # settings of arms the spec defines, by name
    gpu_seconds: float | None = None

    def config(self, task: str, arm: str, seed: int, device: str) -> RunConfig:
        """The settings of one cell.  Serial (`workers=1`), so that each proposal knows all results before it."""
        strategy = self.base.get("strategy", "evolve")
        shared = RunConfig(
            task,
            _operators_of(strategy, self.models),
            budget=self.trials,
            seed=seed,
            strategy=strategy,
            target=self.target,
            models=self.models,
            max_tokens=self.tokens,
            gpu_seconds=self.gpu_seconds,
            redrafts=REDRAFTS,
            frozen_parents=True,
            surrogate=True,
            triton=triton_version() if self.models else "",
        ).with_device(device)
        shared = _changed(shared, self.base)
        config = _changed(shared, self.own[arm]) if arm in self.own else (ARMS | MODEL_ARMS)[arm](shared)
        strategy_of(config)  # raises ConfigError if it cannot work with these settings
        return config


def read_spec(path: Path) -> Spec:
    """The spec in the TOML file `path`.  Raises ConfigError where it cannot be what was meant."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected a campaign as TOML in {path}, got: {error}; docs/ablations.md has one") from error
    _only(raw, ("tasks", "seeds", "arms", "budget", "target", "models", "models_file", "run", "arm"), "the spec")
    own = raw.get("arm", {})
    if not isinstance(own, dict):
        raise ConfigError(f"arm: expected tables [arm.NAME], got {own!r:.100}")
    for name in own:
        if name in ARMS | MODEL_ARMS:
            raise ConfigError(f"arm.{name}: expected a new name, got one of the ready arms; choose another")
        _check_name(name)
    tables = {"run": raw.get("run", {}), **{f"arm.{name}": settings for name, settings in own.items()}}
    for where, settings in tables.items():
        _check_types(settings, where)
    check_type("target", "target", raw.get("target", "sm_90"))
    models = _models(raw, path.parent)
    for where, settings in tables.items():
        _check_settings(settings, where, models)
    trials, tokens, gpu_seconds = _budget(raw.get("budget"), models)
    spec = Spec(
        tasks=tuple(_task(name, path.parent) for name in _names(raw, "tasks")),
        seeds=_seeds(raw.get("seeds")),
        arms=tuple(_names(raw, "arms")),
        trials=trials,
        tokens=tokens,
        target=raw.get("target", "sm_90"),
        models=models,
        base=raw.get("run", {}),
        own=own,
        gpu_seconds=gpu_seconds,
    )
    known = [*ARMS, *MODEL_ARMS, *own]
    unknown = [name for name in spec.arms if name not in known]
    if unknown:
        raise ConfigError(
            f"arms: expected names among {', '.join(known)}, got {', '.join(unknown)}; "
            f"define another by its settings in [arm.NAME]"
        )
    asking = [name for name in spec.arms if name in MODEL_ARMS]
    if asking and not models:
        raise ConfigError(f'arms: expected a model for {", ".join(asking)}, got none; add models = ["NAME@BASE_URL"]')
    return spec


class Campaign:
    """The folder of a campaign; made by `open`."""

    def __init__(self, folder: Path, spec: Spec, device: str, tasks: Sequence[str]) -> None:
        """`tasks`: the names of those in the spec, in its order."""
        self.folder, self.spec, self.device = folder, spec, device
        self._paths = dict(zip(tasks, spec.tasks, strict=True))

    @classmethod
    def open(
        cls, folder: Path, spec: Spec, device: str, hashes: Mapping[str, str], versions: Mapping[str, str]
    ) -> Campaign:
        """The campaign in `folder`, begun where there is none.  `hashes`: of the tasks, by name in the spec's order.

        Where the spec has no tasks they come later, by `add`.
        Raises ConfigError where two arms would be the same search, StoreError where the folder holds another campaign
        or a run.
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
                    _check_same(folder, _read_frozen(folder), frozen)
                else:
                    _write(path, frozen)
        except OSError as error:
            raise StoreError(f"expected to write {path}, got: {error}; choose another folder by --out") from error
        return campaign

    def add(self, task: str, path: str, hash: str) -> None:
        """One more task, with its folder.  Raises StoreError where the campaign has it as another one."""
        file = self.folder / FILE
        with lock(self.folder / LOCK):
            frozen = _read_frozen(self.folder)
            if frozen["tasks"].get(task, hash) != hash:
                raise _other(self.folder, f"task {task}")
            if task not in frozen["tasks"]:  # every process that shares the campaign says so
                frozen["tasks"][task] = hash
                _write(file, frozen)
        self._paths[task] = path

    def cells(self) -> list[Cell]:
        """All cells, task by task, and within a task all arms of a seed together."""
        return _cells(self._paths, self.spec.seeds, self.spec.arms)

    def cells_of(self, task: str) -> list[Cell]:
        return _cells([task], self.spec.seeds, self.spec.arms)

    def config(self, cell: Cell) -> RunConfig:
        return self.spec.config(self._paths[cell.task], cell.arm, cell.seed, self.device)

    def _frozen(self, hashes: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, Any]:
        arms = {}
        for arm in self.spec.arms:
            settings = _settings(self.spec.config("", arm, 0, self.device))
            arms[arm] = {k: v for k, v in settings.items() if k not in ("task", "seed")}
        frozen = {
            "arms": arms,
            "tasks": dict(hashes),
            "seeds": self.spec.seeds,
            "budget": {
                "trials": self.spec.trials,
                "tokens": self.spec.tokens,
                "gpu_seconds": self.spec.gpu_seconds,
            },
            "device": self.device,
            "versions": dict(versions),
        }
        frozen = json.loads(json.dumps(frozen))  # as it will be read
        return {"hash": hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:16], **frozen}


@dataclass(frozen=True)
class Plan:
    """What a campaign folder says was to be run, wherever it was."""

    settings: Mapping[str, Mapping[str, Any]]  # by arm: those that its cells share
    tasks: Mapping[str, str]  # hashes by name
    seeds: tuple[int, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.settings)

    @property
    def cells(self) -> list[Cell]:
        return _cells(self.tasks, self.seeds, self.arms)


def read_plan(folder: Path) -> Plan:
    """Of the campaign in `folder`.  Raises StoreError where there is none, or its file is damaged."""
    frozen = _read_frozen(folder)
    return Plan(frozen["arms"], frozen["tasks"], tuple(frozen["seeds"]))


def check_run(folder: Path, cell: Cell, info: RunInfo) -> None:
    """Raises StoreError unless a run is the one that the campaign in `folder` is to have in `cell`.

    `evo resume` may have given it another budget, or somebody has put another run in its place.
    """
    plan = read_plan(folder)
    settings = {"task": "", "seed": cell.seed, **plan.settings.get(cell.arm, {})}
    try:
        expected = _comparable(RunConfig.from_json(json.dumps(settings)))
    except (KeyError, TypeError, ConfigError) as error:
        raise _damaged(folder, f"no settings known here for arm {cell.arm} ({error})") from error
    expected["task hash"] = plan.tasks.get(cell.task)
    got = _comparable(info.config) | {"task hash": info.task_hash}
    differing = [f"{name} {got[name]!r} instead of {expected[name]!r}" for name in got if got[name] != expected[name]]
    if differing:
        raise StoreError(
            f"expected the run of {cell} in {folder / cell.path}, got one with {', '.join(differing)}; restore it from "
            f"a copy, or delete that folder and run the cell anew"
        )


def _comparable(config: RunConfig) -> dict[str, Any]:
    """Settings that make a cell's search what it is.

    Not where a task lies (its hash says what it is), nor which devices evaluate and at which addresses models answer:
    a cell may be gone on with on another machine.
    """
    settings = _settings(config)
    for model in settings["models"]:
        del model["endpoint"]
    return {name: value for name, value in settings.items() if name not in ("task", "gpus", "ray_address")}


def _settings(config: RunConfig) -> dict[str, Any]:
    """As JSON; of a plug-in what it is, not where it lies."""
    settings = dataclasses.asdict(config)
    settings["plugins"] = [{key: p[key] for key in ("kind", "name", "hash")} for p in settings["plugins"]]
    return settings


def _cells(tasks: Iterable[str], seeds: Sequence[int], arms: Sequence[str]) -> list[Cell]:
    return [Cell(task, arm, seed) for task in tasks for seed in seeds for arm in arms]


# --- checks -----------------------------------------------------------------------------------------------------------


def _only(raw: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: expected a table, got {raw!r}")
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise ConfigError(f"{where}: expected keys among {', '.join(known)}, got {', '.join(unknown)}")


def _check_settings(settings: Mapping[str, Any], where: str, models: Sequence[Model]) -> None:
    """Of what a command line would set too, in the words of a spec; the rest is checked with the configurations."""
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


def _check_name(arm: str) -> None:
    """Of an arm: it is a folder's name in the paths of cells, and must not lead out of the campaign's folder."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", arm) or arm in (".", ".."):
        raise ConfigError(
            f"arm.{arm}: expected a name of at most 100 letters, digits, '.', '_' and '-', which is neither '.' nor "
            f"'..', got {arm!r}; choose another: cells' folders are called by it"
        )


def _task(name: str, folder: Path) -> str:
    """A task as the spec names it: built in, in a folder from here, or in one beside the spec."""
    beside = folder / name
    if name not in task_names() and not Path(name).is_dir() and (beside / "task.py").exists():
        return str(beside)
    return name


def _seeds(raw: Any) -> tuple[int, ...]:
    low, high = SEEDS
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
    """Candidates, tokens (where models are asked) and GPU seconds of each cell, the last two None without a limit.

    Ranges are checked with the configurations.
    """
    if not isinstance(raw, dict) or "trials" not in raw:
        raise ConfigError(f"budget: expected a table with `trials`, the candidates of each cell, got {raw!r}")
    _only(raw, ("trials", "tokens", "gpu_seconds"), "budget")
    if problem := out_of_range("budget", raw["trials"]):
        raise ConfigError(f"budget.trials: {problem}; e.g. trials = 24")
    if "tokens" in raw and not models:
        raise ConfigError("budget: expected models where tokens are limited, got none; drop `tokens` or add models")
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
    """Two arms with the same settings are the same runs: a difference of nothing, paid for."""
    seen: dict[RunConfig, str] = {}
    for arm in spec.arms:
        config = spec.config("", arm, 0, device)
        twin = seen.setdefault(config, arm)
        if twin != arm:
            raise ConfigError(f"arms: {twin} and {arm} come to the same settings here; leave one out")


def _check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    free = {"hash"} if now["tasks"] else {"hash", "tasks"}  # they are added one by one
    changed = [key for key in now if then.get(key) != now[key] and key not in free]
    if changed:
        before, after = _hashes(then), _hashes(now)
        changed += [
            f"{name} (hash {before.get(name, 'none')} then, {after.get(name, 'none')} now)"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        raise _other(folder, ", ".join(changed))


def _hashes(frozen: Mapping[str, Any]) -> dict[str, str]:
    """Of the plug-ins of all arms, by kind and name."""
    records = [record for arm in frozen["arms"].values() for record in arm.get("plugins", ())]
    return {f"{record['kind']} {record['name']}": record["hash"] for record in records}


def _other(folder: Path, changed: str) -> StoreError:
    return StoreError(
        f"cannot go on with the campaign in {folder}: {changed} differ from when it was started, so its cells could "
        f"not be compared; restore them, or choose another folder by --out"
    )


def _read_frozen(folder: Path) -> dict[str, Any]:
    """What is frozen of the campaign in `folder`.  Raises StoreError where there is none, or its file is damaged."""
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
    kinds = {"arms": (dict, dict), "tasks": (dict, str), "seeds": (list, int)}
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
    new = path.with_suffix(".new")
    new.write_text(json.dumps(frozen, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)
