"""Writes what a campaign came to into its folder: tables of its variants, and the figures of each kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import StoreError, how_to_install
from evo.search.budget import in_words

if TYPE_CHECKING:
    from analysis.outcomes import Outcome
    from analysis.suite import SuiteKernel
    from evo.campaign.spec import CampaignRun, Plan
    from fitness.suites.check import CheckOutcome

SUMMARY = "summary.md"


# --- variants ---------------------------------------------------------------------------------------------------------


def compare_variants(folder: Path, *, figures: bool, named: Collection[CampaignRun] = ()) -> tuple[bool, bool]:
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
        return stored_outcomes(folder)
    with lock(folder / LOCK):  # other processes that share the campaign write theirs
        known = stored_outcomes(folder) | dict(new)
        order = {run: place for place, run in enumerate(plan.runs)}
        ordered = sorted(known, key=lambda run: order.get(run, len(order)))
        outcomes.save(folder / outcomes.FILE, [known[run] for run in ordered])
    return known


def stored_outcomes(folder: Path) -> dict[CampaignRun, Outcome]:
    """Returns the outcomes kept in a campaign's folder.  Raises StoreError if their file is damaged."""
    from analysis import outcomes
    from evo.campaign.spec import CampaignRun

    path = folder / outcomes.FILE
    return {CampaignRun(o.task, o.variant, o.seed): o for o in outcomes.load(path)} if path.exists() else {}


# --- kernels ----------------------------------------------------------------------------------------------------------


def sum_up(folder: Path, lines: Mapping[str, int], plan: Plan | None, *, aloud: bool) -> None:
    """Writes summary.md and kernels.parquet of a campaign; aloud: prints the summary, too.

    lines: of code, by kernel, in the order of the campaign.  plan: None if nothing is searched.
    """
    from analysis.suite import summary
    from evo.campaign.suite import FILE, read_settings

    suite = read_settings(folder) if (folder / FILE).exists() else None
    kernels = list(_kernels(folder, lines, plan))
    try:
        text = summary(kernels, with_pytorch=bool(suite and suite["with_pytorch"]), suite=suite is not None)
    except ValueError as error:
        common.say(f"nothing to sum up: {error}")
        return
    (folder / SUMMARY).write_text(text, encoding="utf-8")
    common.say(f"\n{text}" * aloud + f"in {folder}: {SUMMARY}{_parquet(folder, kernels)}")


def _parquet(folder: Path, kernels: Sequence[SuiteKernel]) -> str:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        return f"; for kernels.parquet: {how_to_install()}"
    from analysis.suite_kernels import FILE, write_kernels

    write_kernels(folder / FILE, kernels)
    return f", {FILE}"


def _kernels(folder: Path, lines: Mapping[str, int], plan: Plan | None) -> Iterator[SuiteKernel]:
    """Yields each kernel of a campaign, once for each of its runs."""
    from evo.campaign.spec import CampaignRun
    from evo.campaign.suite import FILE, read_baselines, read_checked

    suite = (folder / FILE).exists()
    checked, timed = read_checked(folder), read_baselines(folder)
    for variant in plan.variants if plan is not None else ("",):
        models = plan is not None and bool(plan.settings[variant].get("models"))
        for seed in plan.seeds if plan is not None else (0,):
            for name, count in lines.items():
                run = CampaignRun(name, variant, seed)
                outcome = checked.get(name)
                found = (
                    _not_searched(run, count, outcome)
                    if suite and (outcome is None or not outcome.searchable(models=models))
                    else _kernel(folder, run, count, timed.get(name, []), outcome.note if outcome else "")
                )
                yield found


def _not_searched(run: CampaignRun, lines: int, outcome: CheckOutcome | None) -> SuiteKernel:
    from analysis.suite import SuiteKernel

    reason = outcome.reason if outcome is not None else ""
    return SuiteKernel(run.task, lines, reason, variant=run.variant, seed=run.seed)


def _kernel(folder: Path, run: CampaignRun, lines: int, timed: Sequence[dict[str, Any]], note: str) -> SuiteKernel:
    """Returns what is known of one run of a kernel; `timed`: PyTorch's times beside its seed kernel."""
    from analysis.outcomes import outcome_of
    from analysis.suite import SuiteBaseline, SuiteKernel
    from evo.campaign.runner import finished, why_failed

    if why := why_failed(folder, run):
        return SuiteKernel(run.task, lines, f"its search failed: {why}", variant=run.variant, seed=run.seed)
    baselines = {
        b["name"]: SuiteBaseline(b["us"], b["seed_us"], b["ratio"], tuple(b["ci95"]), b["error"]) for b in timed
    }
    known = SuiteKernel(run.task, lines, baselines=baselines, note=note, variant=run.variant, seed=run.seed)
    if not finished(folder, run):
        return dataclasses.replace(known, so_far=_so_far(run.folder(folder)))
    found = outcome_of(run.folder(folder), run.variant)
    return dataclasses.replace(known, outcome=dataclasses.replace(found, task=run.task))


def _so_far(run: Path) -> str:
    """Returns how far a run came that is not finished, in words; "" if it was not begun or cannot be read."""
    from evo.storage.queries import RunReader

    try:
        with RunReader(run) as reader:
            best, pending = reader.best(), reader.pending_count()
            done = f"{reader.spent()} of {in_words(reader.info.config.budget, reader.info.config.gpu_seconds)}"
    except StoreError:
        return ""
    waiting = f", {pending} more proposed" if pending else ""
    return f"{done}{waiting}" + (f", best {best.fitness}" if best is not None else "")
