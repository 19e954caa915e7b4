"""Decides whether a run measures on a GPU or estimates without one, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from fitness.cuda.gpus import Gpus


@dataclass(frozen=True)
class Choice:
    """How many GPUs measure (0: times are estimated), and one line on it."""

    gpus: int
    line: str

    @property
    def device(self) -> str:
        return "gpu" if self.gpus else "cpu"


def resolve(wanted: str | None, find: Callable[[], Gpus], *, unasked: str = "1", started: str = "") -> Choice:
    """Returns what --gpus `wanted` means here.

    Without the option, GPUs are used if they can be, as many as `unasked` says. started: the device of a run that goes
    on, "" for a new one; such a run keeps to it.  Raises ConfigError for GPUs that are not there.
    """
    asked = wanted or unasked
    check_gpus(asked)
    if started and wanted is not None and (wanted == "none") != (started == "cpu"):
        kind = "estimated" if started == "cpu" else "measured on a GPU"
        raise ConfigError(f"--gpus {wanted}: this run is {kind}, and keeps to it; leave it out, or start another run")
    if asked == "none" or started == "cpu":
        return Choice(0, _estimating("as this run was started" if started else "--gpus none"))
    gpus = find()
    if gpus.problem and started:
        raise ConfigError(
            f"this run is measured on a GPU, but {gpus.problem}; resume it where there is one, or start another run"
        )
    if gpus.problem and wanted is None:
        return Choice(0, _estimating(gpus.problem))
    if gpus.problem:
        raise ConfigError(f"--gpus {wanted}: expected a GPU, but {gpus.problem}; --gpus none estimates without one")
    number = gpus.count if asked == "all" else _number(asked)
    if number > gpus.count:
        raise ConfigError(f"--gpus {asked}: expected at most {gpus.count}, as many GPUs as there are; or --gpus all")
    why = "as this run was started" if started else "--gpus none estimates instead"
    return Choice(number, _measuring(number, gpus.name, f"--gpus {wanted}" if wanted else why))


def check_gpus(wanted: str | None) -> None:
    """Raises ConfigError if --gpus `wanted` is malformed."""
    if wanted not in (None, "all", "none"):
        _number(wanted)


def check_address(address: str | None) -> None:
    """Raises ConfigError if --ray-address `address` is malformed."""
    if address in (None, "auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(
            f"--ray-address {address}: expected HOST:PORT of a Ray cluster, auto or local, got {address!r}; "
            "`ray start --head` starts one and says where"
        )


def choose(wanted: str | None, find: Callable[[], Gpus]) -> tuple[str, str]:
    """Returns ("gpu" or "cpu", one line on it) from `resolve`, for what drives no more than one GPU."""
    choice = resolve(wanted, find)
    if choice.gpus > 1:
        raise ConfigError(f"--gpus {wanted}: this command drives one GPU, got {choice.gpus}; set --gpus 1")
    return choice.device, choice.line


def _estimating(why: str) -> str:
    return f"estimating times by a model of the target, no GPU measures them ({why})"


def _measuring(number: int, name: str, why: str) -> str:
    where = "GPU 0" if number == 1 else f"{number} GPUs"
    return f"measuring times on {where}, {name} ({why})"


def _number(wanted: str) -> int:
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)):
        raise ConfigError(f"--gpus: expected a number from 1, all or none, got {wanted!r}")
    return int(wanted)
