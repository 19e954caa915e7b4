"""`evo ablate`: runs a campaign and compares variants of the search."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.cli.campaigns import run_campaign
from evo.core.errors import ConfigError, StoreError, how_to_install
from evo.search.budget import in_words

if TYPE_CHECKING:
    from analysis.outcomes import Outcome
    from evo.campaign.spec import CampaignRun, Plan, Spec
    from fitness.tasks.task import Task


def add(commands: Any) -> None:
    ablate = commands.add_parser(
        "ablate",
        help="variants x tasks x seeds as one campaign, with tables, tests and figures",
        description="Runs every variant of SPEC on every task and seed at equal budget, continues a stopped campaign, "
        "and compares the variants with the first one. Exit code 0: all runs are finished; 1: some failed, or a folder "
        "has nothing to compare; 2: misuse.",
    )
    ablate.add_argument(
        "spec",
        type=Path,
        metavar="SPEC.toml",
        help="what to run (docs/ablations.md), or the folder of a campaign: writes its tables and figures again",
    )
    ablate.add_argument("--out", type=Path, metavar="DIR", help="campaign folder (default: runs/ and SPEC's name)")
    ablate.add_argument(
        "--workers", type=int, metavar="W", help="runs at once (default: as many as CPUs and GPUs allow)"
    )
    common.add_gpus(ablate)
    common.add_ray(ablate)
    common.add_plugins(ablate)
    ablate.add_argument("--no-figures", action="store_true", help="write tables only; needs no matplotlib")
    ablate.set_defaults(command=_ablate)


def _ablate(arguments: argparse.Namespace) -> int:
    from evo.campaign.runner import counter
    from evo.campaign.spec import Campaign, read_spec
    from evo.core.versions import versions
    from evo.search.assemble import check_models, describe_models
    from evo.search.evaluators import find_devices
    from evo.search.options import check_workers

    check_workers(arguments.workers)
    if not arguments.no_figures:
        _check_figures()
    if arguments.spec.is_dir():
        compared, damaged = report(arguments.spec, figures=not arguments.no_figures)
        return 0 if compared and not damaged else common.EXIT_NOT_OK
    spec = read_spec(arguments.spec)
    check_models(spec.models)
    tasks = _tasks(spec)
    devices = find_devices(arguments.gpus, arguments.ray_address, spec.target)
    common.say("\n".join(devices.lines))
    device, workers = devices.choice.device, devices.workers(arguments.workers)
    folder = arguments.out or Path("runs", arguments.spec.stem)
    hashes = {name: task.hash for name, task in tasks.items()}
    campaign = Campaign.open(folder, spec, device, hashes, versions())
    _stored(folder)  # before hours of running, not after them
    shutil.copyfile(arguments.spec, folder / "spec.toml")
    runs = campaign.runs()
    finished = counter(folder, runs)
    common.say(
        f"campaign {folder}: {len(spec.variants)} variants x {len(tasks)} tasks x {len(spec.seeds)} seeds = "
        f"{len(runs)} runs of {in_words(spec.trials, spec.gpu_seconds)}; {finished()} finished; {workers} at once"
    )
    if spec.models:
        common.say("\n".join(describe_models(spec.config("", spec.variants[0], 0, device))))
    failed, interrupted = run_campaign(
        campaign,
        tasks.values(),
        workers,
        finished,
        lambda: len(runs),
        lambda: devices.open_factory(spec.target),
    )
    _, damaged = report(folder, figures=not arguments.no_figures, named=[done.run for done in failed])
    if interrupted:
        common.say(f"interrupted; the same command continues ({folder} keeps what is finished)")
        return common.EXIT_INTERRUPTED
    return common.EXIT_NOT_OK if failed or damaged else 0


def _check_figures() -> None:
    """Raises ConfigError without matplotlib: before hours of running, not after them."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"expected matplotlib for the figures, found none; {how_to_install('figures')}, or give --no-figures"
        )


def _tasks(spec: Spec) -> dict[str, Task]:
    from evo.api import load_task

    loaded = [load_task(name) for name in spec.tasks]
    tasks = {task.name: task for task in loaded}
    if len(tasks) < len(loaded):
        raise ConfigError(f"tasks: expected different names, got {', '.join(t.name for t in loaded)}; rename a folder")
    return tasks


# --- report -----------------------------------------------------------------------------------------------------------


def report(folder: Path, *, figures: bool, named: Collection[CampaignRun] = ()) -> tuple[bool, bool]:
    """Writes outcomes, tables and figures of the finished runs into a campaign's folder, and prints the tables.

    Returns whether there was anything to compare, and whether some runs cannot be counted.  It prints the latter,
    except those `named` already.
    """
    from analysis import campaign_report
    from analysis.comparison import compare
    from evo.campaign.spec import read_plan

    plan = read_plan(folder)
    found, damaged = _outcomes(folder, plan)
    for run, error in damaged.items():
        if run not in named:
            common.say(f"failed: {run}: {error}")
    try:
        comparison = compare(found, plan.variants)
    except ValueError as error:
        common.say(f"nothing to compare: {error}")
        return False, bool(damaged)
    text = campaign_report.markdown(comparison)
    missing = len(plan.runs) - len(found)
    if missing:
        text += (
            f"\n{missing} of {len(plan.runs)} runs are missing; their tasks and seeds are left out for all variants.\n"
        )
    (folder / "tables.md").write_text(text, encoding="utf-8")
    (folder / "tables.tex").write_text(campaign_report.latex(comparison), encoding="utf-8")
    drawn = [path.name for path in campaign_report.draw(folder, comparison, found)] if figures else []
    common.say(f"\n{text}")
    common.say(f"in {folder}: {', '.join(['outcomes.json', 'tables.md', 'tables.tex', *drawn])}")
    return True, bool(damaged)


def _outcomes(folder: Path, plan: Plan) -> tuple[list[Outcome], dict[CampaignRun, StoreError]]:
    """Returns the outcomes of finished runs (also of runs that are gone now), and why other runs cannot be counted."""
    from analysis.outcomes import outcome_of
    from evo.campaign.runner import came_to_end
    from evo.storage.store import FILE

    new: dict[CampaignRun, Outcome] = {}
    damaged: dict[CampaignRun, StoreError] = {}
    for run in plan.runs:
        try:
            if (run.folder(folder) / FILE).exists() and came_to_end(folder, run):
                found = outcome_of(run.folder(folder), run.variant)
                new[run] = dataclasses.replace(found, task=run.task)  # its folder may be given as "."
        except StoreError as error:
            damaged[run] = error
    known = _kept(folder, plan, new)
    return [known[run] for run in plan.runs if run in known and run not in damaged], damaged


def _kept(folder: Path, plan: Plan, new: Mapping[CampaignRun, Outcome]) -> dict[CampaignRun, Outcome]:
    """Adds `new` to the folder's file of outcomes and returns all that it holds; other outcomes in it stay.

    A campaign may be archived without its runs: then only this file has their outcomes.
    """
    from analysis import outcomes
    from evo.campaign.spec import LOCK
    from evo.core.locks import lock

    if not new:
        return _stored(folder)
    with lock(folder / LOCK):  # other processes that share the campaign write theirs
        known = _stored(folder) | dict(new)
        order = {run: place for place, run in enumerate(plan.runs)}
        ordered = sorted(known, key=lambda run: order.get(run, len(order)))
        outcomes.save(folder / outcomes.FILE, [known[run] for run in ordered])
    return known


def _stored(folder: Path) -> dict[CampaignRun, Outcome]:
    """Returns the outcomes kept in a campaign's folder.  Raises StoreError if their file is damaged."""
    from analysis import outcomes
    from evo.campaign.spec import CampaignRun

    path = folder / outcomes.FILE
    return {CampaignRun(o.task, o.variant, o.seed): o for o in outcomes.load(path)} if path.exists() else {}
