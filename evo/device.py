"""Whether a run measures on a GPU or estimates without one, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evo.errors import ConfigError


class Gpus(Protocol):
    """The GPUs of this machine; `problem` says why the first cannot be used, "" where it can."""

    @property
    def count(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str: ...


def choose(wanted: str | None, find: Callable[[], Gpus]) -> tuple[str, str]:
    """("gpu" or "cpu", one line on it) for --gpus `wanted`; without the option a GPU is used where one can be.

    Raises ConfigError where GPUs are asked for that cannot be had.
    """
    number = 1 if wanted in (None, "all", "none") else _number(str(wanted))
    if wanted == "none":
        return "cpu", _estimating("--gpus none")
    gpus = find()
    if gpus.problem and wanted is None:
        return "cpu", _estimating(gpus.problem)
    if gpus.problem:
        raise ConfigError(f"--gpus {wanted}: expected a GPU, but {gpus.problem}; --gpus none estimates without one")
    number = gpus.count if wanted == "all" else number
    if number > 1:
        raise ConfigError(f"--gpus {wanted}: this version drives one GPU, got {number}; set --gpus 1")
    return "gpu", _measuring(gpus, "--gpus none estimates instead" if wanted is None else f"--gpus {wanted}")


def again(device: str, find: Callable[[], Gpus]) -> str:
    """One line on a run that goes on as it was started.  Raises ConfigError where it needs a GPU and there is none."""
    if device == "cpu":
        return _estimating("as this run was started")
    gpus = find()
    if gpus.problem:
        raise ConfigError(
            f"this run is measured on a GPU, but {gpus.problem}; resume it where there is one, or start another run"
        )
    return _measuring(gpus, "as this run was started")


def _estimating(why: str) -> str:
    return f"estimating times by a model of the target, no GPU measures them ({why})"


def _measuring(gpus: Gpus, why: str) -> str:
    return f"measuring times on GPU 0, {gpus.name} ({why})"


def _number(wanted: str) -> int:
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)):
        raise ConfigError(f"--gpus: expected a number from 1, all or none, got {wanted!r}")
    return int(wanted)
