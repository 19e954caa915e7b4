"""`evo doctor`: says what this machine can do, and how to fix what it cannot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common

if TYPE_CHECKING:
    from evo.cli.doctor_checks import Probe

TASK = "vector_sin"  # the built-in task whose seed is evaluated soonest
_COLOURS = {"ok": "green", "missing": "yellow", "not usable": "red"}


def add(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say what this machine can do, and how to fix what it cannot",
        description="Checks this machine, at last by evaluating a seed kernel. Exit code 0: `evo run` works; 1: not.",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="a model that is to be asked (docs/llm.md)",
    )
    doctor.add_argument("--models", type=Path, metavar="FILE.toml", help="settings of models")
    common.add_devices(doctor)
    doctor.set_defaults(command=_doctor)


class _TryRun:
    """Evaluates the seed of a small task as `evo run` would; `kind` is "measured" or "estimated" after that."""

    def __init__(self, target: str, gpus: str | None, address: str | None) -> None:
        self._target, self._gpus, self._address = target, gpus, address
        self.kind: str | None = None

    def __call__(self) -> str:
        from evo.api import Evaluator

        with Evaluator(TASK, gpus=self._gpus, target=self._target, ray_address=self._address) as evaluator:
            self.kind = "measured" if evaluator.measured else "estimated"
            return f"{evaluator.description}; tried on the seed of {TASK}"


def _doctor(arguments: argparse.Namespace) -> int:
    from evo.cli.doctor_checks import OK, Machine, examine
    from evo.llm.models import read_models
    from evo.search.evaluators import find_gpus
    from fitness.frontend.target import get_target

    get_target(arguments.target)
    try_run = _TryRun(arguments.target, arguments.gpus, arguments.ray_address)
    models = read_models(arguments.model, arguments.models)
    checks = examine(Machine(lambda: find_gpus(arguments.target), try_run, arguments.ray_address, models))
    seen = list(checks) if arguments.json else _print(checks)
    works = all(check.state == OK for check in seen if check.needed)
    if arguments.json:
        facts = {"works": works, "kind": try_run.kind, "checks": [check.as_dict() for check in seen]}
        common.say(json.dumps(facts, indent=2))
    else:
        common.say(
            f"\n`evo run` works here; its times are {try_run.kind}" if works else "\n`evo run` does not work here"
        )
    return 0 if works else common.EXIT_NOT_OK


def _print(checks: Iterable[Probe]) -> list[Probe]:
    """Prints one line a check as soon as it is known, its fix on the next."""
    from rich.console import Console
    from rich.text import Text

    console, seen = Console(), []
    for check in checks:
        state = Text(f"{check.state:<12}", style=_COLOURS[check.state])
        console.print(state + Text(f"{check.name}: {check.found}"), soft_wrap=True)
        if check.fix:
            console.print(Text(f"{'':<12}fix: {check.fix}"), soft_wrap=True)
        seen.append(check)
    return seen
