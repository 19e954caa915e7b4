"""`evo show`: prints a run or one of its trials."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from evo.storage.folders import run_folder


def add(commands: Any) -> None:
    show = commands.add_parser("show", help="look at a run or at one trial, also while it runs")
    show.add_argument("folder", type=run_folder, metavar="DIR")
    show.add_argument("trial", nargs="?", type=int, metavar="TRIAL")
    show.set_defaults(command=_show)


def _show(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from evo.cli.show_text import show_run, show_trial
    from evo.storage.store import RunReader

    # Lines that do not go to a terminal may be long: better for grep than folded cells.
    console = Console(width=None if sys.stdout.isatty() else 160)
    with RunReader(arguments.folder) as run:
        if arguments.trial is None:
            show_run(run, console)
        else:
            show_trial(run, arguments.trial, console)
    return 0
