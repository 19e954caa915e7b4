"""`evo apply`: puts what a run found into the program that its task was made of."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError
from evo.storage.folders import run_folder

if TYPE_CHECKING:
    from evo.api import Evaluator
    from evo.core.settings import RunConfig
    from evo.programs.apply import Appliable
    from evo.programs.dispatch import Opener
    from fitness.tasks.task import Task


def add(commands: Any) -> None:
    apply = commands.add_parser(
        "apply",
        help="put the kernel that a run found into the program",
        description="Takes a run of a task that `evo tasks new --from` made. --to prints a patch of the user's source "
        "file; --package writes a package that replaces the function while the program runs, and runs the original "
        "outside of what was verified. Exit code 0: done; 1: the run found nothing faster; 2: misuse.",
    )
    apply.add_argument("run", type=run_folder, metavar="RUN", help="the folder of a run")
    where = apply.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=Path, metavar="FILE", help="the user's source file: prints the patch as a diff")
    where.add_argument("--package", type=Path, metavar="DIR", help="writes a package; `import DIR.patch` replaces")
    apply.add_argument("--write", action="store_true", help="with --to: change FILE")
    apply.add_argument(
        "--single", action="store_true", help="one kernel for all shapes; do not try a dispatcher over several"
    )
    common.add_gpus(apply)
    apply.set_defaults(command=_apply)


def _apply(arguments: argparse.Namespace) -> int:
    from evo.programs.apply import doubts, find

    if arguments.write and arguments.to is None:
        raise ConfigError("--write: expected it with --to FILE, got it without; leave it out")
    aside = common.Aside()
    finding = find(arguments.run, aside.say, opener=None if arguments.single else _opener(arguments.gpus))
    if finding is None:
        aside.say("the run found nothing faster than the original; nothing to apply")
        return common.EXIT_NOT_OK
    if arguments.to is not None:
        _to_file(finding, arguments.to, arguments.write)
    else:
        _to_package(finding, arguments.package)
    for doubt in doubts(finding):
        aside.say(f"warning: {doubt}")
    return 0


def _opener(gpus: str | None) -> Opener:
    """Returns what opens an evaluator with the settings of a run; gpus: as --gpus takes them."""
    from evo.api import Evaluator

    def opened(task: Task, config: RunConfig) -> Evaluator:
        return Evaluator(
            task,
            gpus=gpus or ("none" if config.device == "cpu" else None),
            target=config.target,
            seed=config.seed,
            allow_delegation=config.allow_delegation,
            progress=common.Aside(),
        )

    return opened


def _to_file(finding: Appliable, file: Path, write: bool) -> None:
    from evo.programs.source_patch import diff_of, patched, write_file

    before, after = patched(finding, file)
    common.say(diff_of(file, before, after).rstrip("\n"))
    if write:
        write_file(file, after)
        common.Aside().say(f"changed {file}; outside of the sizes in its header nothing was verified")
    else:
        common.Aside().say(f"{file} is as it was; --write changes it")


def _to_package(finding: Appliable, folder: Path) -> None:
    from evo.programs.package import write_package

    for path in write_package(finding, folder):
        common.say(str(path))
    common.Aside().say(
        f"`import {folder.resolve().name}.patch` replaces {finding.origin.name} by {finding.fitness}; "
        "outside of what was verified the original runs"
    )
