"""`evo watch`: shows a run while another process executes it."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from evo.storage.folders import run_folder


def add(commands: Any) -> None:
    watch = commands.add_parser(
        "watch",
        help="watch a run from another process",
        description="Shows a run until it ends. Ctrl-C stops watching, not the run.",
    )
    watch.add_argument("folder", type=run_folder, metavar="DIR")
    watch.add_argument("--once", action="store_true", help="show it as it is now")
    watch.set_defaults(command=_watch)


def _watch(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from evo.cli.watch_panel import watch
    from evo.storage.store import RunReader

    with RunReader(arguments.folder) as run, contextlib.suppress(KeyboardInterrupt):
        watch(run, Console(), once=arguments.once)
    return 0
