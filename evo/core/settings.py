"""Defines the settings of a run: resolved once, checked once, frozen, stored with the run."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from evo.core import plugins
from evo.core.baselines import BaselineKind
from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.plugins import PluginRecord
from evo.core.records import OperatorRef

SEED_RANGE = (0, 2**63 - 1)  # SQLite's integers end there

# (lowest, highest) value of each number.  The upper ends are far beyond sensible use; they catch slips of the keyboard.
_RANGES = {
    "budget": (1, 10_000_000),
    "seed": SEED_RANGE,
    "islands": (1, 64),
    "workers": (1, 1024),
    "screen_budget": (0, 10_000),
    "tune_budget": (0, 10_000),
    "redrafts": (0, 10_000),
    "population": (2, 1024),
    "migrate_every": (1, 1_000_000),
    "llm_slots": (1, 1024),
}
_OPTIONS = {"screen_budget": "--screen-budget"} | {n: f"--{n}" for n in ("budget", "seed", "islands", "workers")}
_NAMES = {"llm_slots": "--llm-concurrency"}  # of numbers with another name on the command line

# Fields with a check beyond their type.
_RANGED = (*_RANGES, "allow_delegation", "archive_share", "max_tokens", "max_usd", "gpu_seconds", "stop_at_attainable")

DEVICES = ("cpu", "gpu")
# An estimate takes a core for a second or several, and the search waits for it; a GPU measures several candidates
# meanwhile.  Answers of models differ by too little for estimates to rank them (runs/reference/h200-estimate).
GPU_ESTIMATES = 0  # screened drafts, and settings of an answer
# Up to two thirds of what rules proposed for kernels of suites were duplicates: of kernels that no case launches, or by
# options that change nothing.  One compilation finds that out.
REDRAFTS = 8
# A kernel with this share of the attainable speed in every tune case has next to nothing left to gain.
STOP_AT, OFF = 0.97, "off"
# How much of a profile a prompt holds: a digest with hints, the metrics as they were read, nothing.  The latter two
# exist to find out what the first is worth.
GUIDANCE = ("digest", "raw", "none")
# Of time and outputs, if a task allows delegation: a candidate's own kernels must do most of the work.
MIN_OWN_SHARE = 0.5

DEFAULT_TASK = "softmax"
DEFAULT_CONCURRENCY = 8  # questions in flight if several workers evaluate
# Populations; and the candidates that each has at least, if models are asked: fewer would be as many short searches.
ISLANDS, CANDIDATES_AN_ISLAND = 3, 24


def default_islands(budget: int, models: Sequence[object]) -> int:
    """Returns the number of populations for `budget` candidates."""
    return max(1, min(ISLANDS, budget // CANDIDATES_AN_ISLAND)) if models else ISLANDS


@dataclass(frozen=True)
class RunConfig:
    """All settings that decide what a run does.

    `budget` counts candidates evaluated after the seed; if `gpu_seconds` are limited, the run ends with whichever is
    spent first.  `operators` and `strategy` are names: `operators.registry` and `evo.search.strategies` say which
    exist.  With workers=1 and llm_slots=1 the run is `serial`: what it does follows from its settings, the task, the
    evaluations and the answers of its models.
    """

    task: str  # name of a built-in task, or the absolute path of a task folder
    operators: tuple[str, ...]
    budget: int = 32
    seed: int = 0
    strategy: str = "evolve"
    islands: int = ISLANDS
    workers: int = 1
    target: str = "sm_90"
    device: str = "cpu"  # "gpu": measured; "cpu": estimated
    gpus: str | None = None  # --gpus as it was given
    ray_address: str | None = None
    screen_budget: int = 12  # most sources an operator may screen for one draft
    redrafts: int = (
        0  # most drafts dropped for one proposal because an earlier candidate has their machine code; serial runs
    )
    frozen_parents: bool = False  # rules change a parent with its chosen autotune configurations alone
    drops_seed: bool = False  # an island whose kernel is faster in every case makes no children of the seed any more
    surrogate: bool = False  # on a GPU, `params` moves genes as the run's own measurements suggest
    progressive: bool = False  # what rules made ends at a first look if it is too slow to be a parent or the best
    tune_budget: int = 12  # most settings of its parameters that an answer of a model is screened in
    population: int = 16  # candidates an island keeps
    migrate_every: int = 20  # trials between two migrations around the ring of islands
    archive_share: float = 0.2  # of parents, taken from the archive of niches: old branches stay reachable; 0: none
    models: tuple[Model, ...] = ()  # that operators of the form `mutate@NAME` ask
    llm_slots: int = 1  # most questions to models in flight
    max_tokens: int | None = None  # of all answers and prompts together; None: no limit
    max_usd: float | None = None
    guidance: str = "digest"  # how much of a profile prompts hold: one of GUIDANCE
    triton: str = ""  # version that prompts are written for
    baseline: str = "seed"  # what speedups are over: one of evo.core.baselines.BaselineKind
    # The least share of the work that own kernels do, if PyTorch may do the rest; None: as the task says.
    allow_delegation: float | None = None
    gpu_seconds: float | None = None  # of all evaluations together, as evo.search.budget counts them; None: no limit
    # The share of the attainable speed that ends the run once the best kernel has it in every tune case; None: no end.
    stop_at_attainable: float | None = None
    # Of what the settings above name and evo does not bring.  Found when the run starts, and kept since: reading a run
    # never needs a plug-in.
    plugins: tuple[PluginRecord, ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name not in _RANGED:
                check_type(field.name, field.name, getattr(self, field.name))
        for name in _RANGES:
            if problem := out_of_range(name, getattr(self, name)):
                hint = f"; set {_OPTIONS[name]}" if name in _OPTIONS else ""
                raise ConfigError(f"{_NAMES.get(name, name)}: {problem}{hint}")
        share = self.archive_share
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise ConfigError(f"archive_share: expected a number from 0 to 1, got {share!r}")
        object.__setattr__(self, "plugins", self._used_plugins())
        if self.device not in DEVICES:
            raise ConfigError(f"device: expected one of {', '.join(DEVICES)}, got {self.device!r}")
        if not self.operators:
            raise ConfigError("operators: expected at least one name, got none; leave --operators out to use all")
        twice = sorted({name for name in self.operators if self.operators.count(name) > 1})
        if twice:
            raise ConfigError(f"operators: expected each name once, got {', '.join(twice)} twice; drop the repetition")
        if self.guidance not in GUIDANCE:
            raise ConfigError(f"--guidance: expected one of {', '.join(GUIDANCE)}, got {self.guidance!r}")
        if self.baseline not in list(BaselineKind):
            known = ", ".join(BaselineKind)
            raise ConfigError(f"baseline: expected one of {known}, got {self.baseline!r}")
        check_share(self.allow_delegation)
        check_limit("--gpu-seconds", self.gpu_seconds)
        check_stop(self.stop_at_attainable)
        self._check_models()

    def _used_plugins(self) -> tuple[PluginRecord, ...]:
        """The records of those plug-ins that the settings name."""
        names = [("operators", OperatorRef.parse(name).name) for name in self.operators]
        names += [("strategies", self.strategy), ("targets", self.target)]
        names += [("providers", model.provider) for model in self.models]
        stored = {(record.kind, record.name): record for record in self.plugins}
        found = (stored.get(name) or plugins.record(*name) for name in dict.fromkeys(names))
        return tuple(record for record in found if record is not None)

    def _check_models(self) -> None:
        names = {m.name for m in self.models}
        asked = {model for o in self.operators if (model := OperatorRef.parse(o).model) is not None}
        unknown = sorted(asked - names)
        if unknown:
            raise ConfigError(
                f"operators: expected models among {', '.join(names) or 'none'}, got {', '.join(unknown)}"
            )
        for name, limit in (("--max-tokens", self.max_tokens), ("--max-usd", self.max_usd)):
            check_limit(name, limit)
        priceless = [m.name for m in self.models if m.costs and m.usd_in is None]
        if self.max_usd is not None and priceless:
            raise ConfigError(
                f"--max-usd: expected a price for each model, got none for {', '.join(priceless)}; give usd_in and "
                f"usd_out in --models FILE (docs/llm.md), or limit tokens by --max-tokens"
            )

    @property
    def baseline_kind(self) -> BaselineKind:
        """What speedups are over."""
        return BaselineKind(self.baseline)

    @property
    def serial(self) -> bool:
        """Whether each proposal knows all results before it."""
        return self.workers == 1 and self.llm_slots == 1

    def with_budget(self, budget: int) -> RunConfig:
        return dataclasses.replace(self, budget=budget)

    def with_device(self, device: str) -> RunConfig:
        """On a GPU nothing is estimated, unless a number was set: to measure takes less time than to estimate.  Without
        one there are no measurements to go by.

        Raises ConfigError if GPU seconds are limited and no GPU measures.
        """
        self.check_gpu_seconds(device)
        return dataclasses.replace(
            self,
            device=device,
            screen_budget=self._estimates("screen_budget", device),
            tune_budget=self._estimates("tune_budget", device),
            surrogate=self.surrogate and device == "gpu",
        )

    def _estimates(self, name: str, device: str) -> int:
        """Returns a number of estimates: as it was set, else what the device is given."""
        number: int = getattr(self, name)
        return GPU_ESTIMATES if device == "gpu" and number == getattr(RunConfig, name) else number

    def check_gpu_seconds(self, device: str) -> None:
        """Raises ConfigError if GPU seconds are limited and no GPU measures."""
        if self.gpu_seconds is not None and device == "cpu":
            raise ConfigError(
                f"a budget of {self.gpu_seconds:g} GPU seconds: expected a GPU that measures, got estimated times; run "
                f"it with one (--gpus), or limit candidates alone"
            )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        raw: dict[str, Any] = json.loads(text)
        models = tuple(Model(**m) for m in raw["models"])
        records = tuple(PluginRecord(**p) for p in raw.get("plugins", ()))  # runs of before plug-ins have none
        return cls(**{**raw, "operators": tuple(raw["operators"]), "models": models, "plugins": records})


def out_of_range(name: str, value: Any) -> str:
    """Returns what is wrong with the value of a number that has a range; "" if nothing is, or for other settings."""
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    if name not in _RANGES or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        return ""
    return f"expected an integer from {low} to {high}, got {value!r}"


_IN_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "nothing"}


def check_type(key: str, field: str, value: Any) -> None:
    """Raises ConfigError unless `value` is of the type of that field of RunConfig; `key`: what the user calls it."""
    hint = _hints()[field]
    if not _fits(value, hint):
        kinds = [words for kind, words in _IN_WORDS.items() if kind in (get_args(hint) or (hint,))]
        expected = "a list of names" if get_origin(hint) is tuple else " or ".join(kinds)
        raise ConfigError(f"{key}: expected {expected}, got {value!r:.100}")


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(RunConfig)


def _fits(value: Any, hint: Any) -> bool:
    """Returns whether `value` has the type; lists pass for tuples and integers for numbers, booleans for neither."""
    if get_origin(hint) is tuple:
        return isinstance(value, (tuple, list)) and all(_fits(v, get_args(hint)[0]) for v in value)
    kinds = get_args(hint) or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)


def check_share(share: Any) -> None:
    """Raises ConfigError unless it is a share of the work, or None."""
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (number and 0 <= share < 1):
        raise ConfigError(
            f"--allow-delegation: expected the share of own kernels, from 0 to less than 1, got {share!r}; give "
            f"another, or none for {MIN_OWN_SHARE:g}"
        )


def check_stop(share: Any) -> None:
    """Raises ConfigError unless it is a share of the attainable speed that can end a run, or None."""
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (number and 0 < share <= 1):
        raise ConfigError(
            f"--stop-at-attainable: expected a share above 0 and at most 1, or off, got {share!r}; {STOP_AT:g} is the "
            f"default"
        )


def share_to_stop(given: float | str | None) -> float | None:
    """Returns the share of the attainable speed that ends a run; None for "off".  Raises ConfigError."""
    if given in (None, OFF):
        return None
    try:
        share = float(given)  # type: ignore[arg-type]  # checked just below
    except (TypeError, ValueError):
        share = given  # type: ignore[assignment]
    check_stop(share)
    return share


def check_limit(name: str, limit: Any) -> None:
    """Raises ConfigError unless it is a number above 0, or None for no limit."""
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if limit is not None and not (number and 0 < limit < math.inf):
        raise ConfigError(f"{name}: expected a number above 0, got {limit!r}; leave it out for no limit")
