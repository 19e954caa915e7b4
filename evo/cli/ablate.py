"""`evo ablate`: runs a campaign from a spec and compares variants of the search."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from evo.cli import campaigns, common, summaries
from evo.core.errors import ConfigError, how_to_install


def add(commands: Any) -> None:
    ablate = commands.add_parser(
        "ablate",
        help="variants x tasks x seeds as one campaign, with tables, tests and figures",
        description="Runs every variant of SPEC on every task and seed at equal budget, continues a stopped campaign, "
        "and compares the variants with the first one. Exit code 0: all runs are finished; 1: some failed, or a folder "
        "has nothing to compare; 2: misuse; 3: a limit of the campaign is reached.",
    )
    ablate.add_argument(
        "spec",
        type=Path,
        metavar="SPEC.toml",
        help="what to run (docs/ablations.md), or the folder of a campaign: writes its tables and figures again",
    )
    ablate.add_argument("--out", type=Path, metavar="DIR", help="campaign folder (default: runs/ and SPEC's name)")
    common.add_gpus(ablate)
    common.add_plugins(ablate)
    ablate.add_argument("--no-figures", action="store_true", help="write tables only; needs no matplotlib")
    campaigns.add_options(ablate)
    ablate.set_defaults(command=_ablate)


def _ablate(arguments: argparse.Namespace) -> int:
    from evo.campaign.spec import read_plan, read_spec

    figures = not arguments.no_figures
    if figures:
        _check_figures()
    if arguments.spec.is_dir():
        compared, damaged = summaries.compare_variants(arguments.spec, figures=figures)
        return 0 if compared and not damaged else common.EXIT_NOT_OK
    spec = read_spec(arguments.spec)
    folder = arguments.out or Path("runs", arguments.spec.stem)
    summaries.stored_outcomes(folder)  # before hours of running, not after them
    ended = campaigns.carry_out(spec, folder, arguments)
    if arguments.helper:
        return ended.code
    shutil.copyfile(arguments.spec, folder / "spec.toml")
    if arguments.propose_only is None:
        summaries.sum_up(folder, ended.lines, read_plan(folder), aloud=False)
        _, damaged = summaries.compare_variants(folder, figures=figures, named=ended.failed)
        return ended.code or (common.EXIT_NOT_OK if damaged else 0)
    return ended.code


def _check_figures() -> None:
    """Raises ConfigError without matplotlib: before hours of running, not after them."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"expected matplotlib for the figures, found none; {how_to_install('figures')}, or give --no-figures"
        )
