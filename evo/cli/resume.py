"""`evo resume`: continues a run that was stopped."""

from __future__ import annotations

import argparse
from typing import Any

from evo.cli import common
from evo.cli.search import CommandLine, show_end
from evo.storage.folders import run_folder


def add(commands: Any) -> None:
    resume = commands.add_parser("resume", help="continue a run that was stopped")
    resume.add_argument("folder", type=run_folder, metavar="DIR")
    resume.add_argument("--budget", type=int, metavar="N", help="candidates in total (default: as the run was started)")
    resume.add_argument("--gpu-seconds", type=float, metavar="X", help="another limit on GPU seconds, in total")
    resume.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="the address at which a model of the run is asked from now on",
    )
    resume.add_argument("--max-tokens", type=int, metavar="N", help="another hard limit on tokens, in total")
    resume.add_argument("--max-usd", type=float, metavar="X", help="another hard limit on dollars, in total")
    common.add_stop(resume, "as the run was started")
    resume.add_argument("--gpus", metavar="N|all", help="another number of GPUs (default: as the run was started)")
    resume.add_argument(
        "--ray-address", metavar="ADDRESS", help="another Ray cluster (default: as the run was started)"
    )
    resume.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help="evaluations at once (default: as before, or as many as --gpus and --ray-address, if given, allow)",
    )
    common.add_new_versions(resume)
    common.add_plugins(resume)
    resume.set_defaults(command=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    from evo import api

    names = (
        "budget", "gpu_seconds", "max_tokens", "max_usd", "gpus", "ray_address", "workers", "stop_at_attainable",
        "new_versions",
    )  # fmt: skip
    settings = {name: getattr(arguments, name) for name in names}
    progress = CommandLine()
    result = api.resume(arguments.folder, models=arguments.model, progress=progress, **settings)
    return show_end(result, searched=progress.searched)
