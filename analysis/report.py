"""Writes one HTML file about runs: their course, the lineage of the best kernel, costs, and how it was measured.

Everything in it is read from the stores in one pass, and nothing is loaded from elsewhere.  The only script is that of
the button that copies the best kernel's source.  All texts of candidates and models are escaped by the template
(`analysis/templates/report.html`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from analysis import charts, stats
from analysis.outcomes import gain
from evo.core import VERSION
from evo.core.baselines import BaselineKind
from evo.core.errors import ConfigError
from evo.core.records import FIRST_OPERATORS, Fitness, Trial
from evo.core.text import of_attainable
from evo.search.archive import Niche, niche_of
from evo.storage.best import best_source, diff
from evo.storage.folders import FILE
from evo.storage.model_calls import CallCost, call_costs
from evo.storage.queries import ModelUse, RunReader
from evo.storage.store import LOCK

DOTS = 1500  # single candidates drawn in a chart; of more, every n-th
ANCESTORS = 80  # drawn in a lineage; of more, only the line of first parents
REGISTERS = ("≤ 32", "≤ 64", "≤ 128", "> 128")  # a thread; the classes of evo.search.archive
SHARED = ("none", "≤ 16 KiB", "≤ 56 KiB", "≤ 113 KiB", "> 113 KiB")  # a program


@dataclass(frozen=True)
class Bounds:
    """Data of a roofline that a store does not hold: the work of each case and the ceilings of the device.

    `problem` says why it is not known; "" if it is.
    """

    work: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # case: (flops, bytes)
    bytes_per_s: float = 0.0
    flops_per_s: float = 0.0
    ceilings: str = ""  # the source of the two
    problem: str = ""


@dataclass
class Course:
    """A run, folded over its trials in the order they were finished."""

    seed: Trial | None = None
    best: Trial | None = None
    trials: int = 0  # the seed is not counted
    steps: list[tuple[dict[str, float], Trial]] = field(
        default_factory=list
    )  # improvements, with the place on each axis
    at: dict[str, float] = field(default_factory=lambda: {"trials": 0.0, "GPU seconds": 0.0, "tokens": 0.0})
    dots: list[tuple[dict[str, float], float]] = field(default_factory=list)
    by_operator: dict[str, Counter[str]] = field(default_factory=dict)
    by_model: dict[str, Counter[str]] = field(default_factory=dict)
    niches: dict[Niche, tuple[float, int]] = field(default_factory=dict)  # the best speedup and its trial
    seconds: Counter[str] = field(default_factory=Counter)
    cost: Counter[str] = field(default_factory=Counter)
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)  # of the fitness

    @property
    def kind(self) -> str:
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "mixed"


@dataclass(frozen=True)
class View:
    """The part of one run that the template shows."""

    number: int
    folder: str
    run: RunReader
    course: Course
    kind: str
    axes: Sequence[tuple[str, Markup]]  # best so far, by what it is drawn over
    verdicts: Sequence[str]  # that occurred, most frequent first
    credit: Sequence[Any]
    lineage: Markup | None
    diffs: Sequence[Mapping[str, Any]]
    final_diff: str
    source: str  # of the best kernel, as best/kernel.py has it; "" without one
    campaign: Path | None  # the folder of the campaign that the run is of
    variant: str  # in that campaign, "" without one
    archive: Sequence[Mapping[str, Any]]
    cases: Sequence[Mapping[str, Any]]
    case_chart: Markup | None
    roofline: Markup | None
    bounds: Bounds
    moves: Sequence[charts.Move]
    models: Sequence[ModelUse]
    environment: Sequence[tuple[str, str]]
    running_s: float
    pending: int

    @property
    def baseline(self) -> BaselineKind:
        return self.run.info.config.baseline_kind

    @property
    def best_text(self) -> str:
        best = self.course.best
        if best is None or best.fitness is None:
            return "none yet"
        check = best.evaluation.check
        own = f", own kernels wrote {check.own_share:.0%}" if check is not None and check.own_share < 1 else ""
        return _interval(best.fitness) + of_attainable(best.evaluation.attained) + own


def write_report(folders: Sequence[Path], out: Path, bounds: Sequence[Bounds]) -> None:
    """Writes the report of the runs in `folders` to `out`; `bounds`: one for each.

    Raises StoreError if a folder holds no run, ConfigError if `out` cannot be written or is something other than a
    report.
    """
    _check_replaceable(out)
    with ExitStack() as stack:
        runs = [stack.enter_context(RunReader(folder)) for folder in folders]
        for run in runs:
            stack.enter_context(run.snapshot())  # of runs that go on meanwhile
        views = [view(number, run, known) for number, (run, known) in enumerate(zip(runs, bounds, strict=True), 1)]
        text = render(views)
    new = out.with_name(out.name + ".new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, out)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not have been made
            new.unlink()
        raise ConfigError(f"expected to write {out}, got: {error}; name another file by --out") from error


def _check_replaceable(out: Path) -> None:
    """Raises ConfigError if `out` exists and is not an earlier report, or has the name of a run's own file."""
    found = ""
    if out.name.startswith(FILE) or out.name == LOCK:
        found = "the name of a file of a run"
    elif out.is_dir():
        found = "a folder"
    elif out.exists() and not _is_report(out):
        found = "a file that is not a report of evo, which stays as it is"
    if found:
        raise ConfigError(f"expected a new file or an earlier report at {out}, got {found}; name another by --out")


def _is_report(path: Path) -> bool:
    if not path.is_file():  # to open a pipe would wait for who writes to it
        return False
    # What the template writes before anything of a run, and before the policy, which depends on the version.
    template = resources.files("analysis") / "templates" / "report.html"
    opening = template.read_bytes().partition(b"<meta http-equiv")[0]
    try:
        with path.open("rb") as file:
            start = file.read(2000)
            return start.startswith(opening) and b"<title>evo report: " in start
    except OSError as error:
        raise ConfigError(f"expected to write {path}, got: {error}; name another file by --out") from error


def render(views: Sequence[View]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    script = environment.get_template("report.js").render()
    return template.render(
        views=views,
        variants=variants(views),
        together=overlay(views) if len(views) > 1 else [],
        key=charts.key,
        version=VERSION,
        REGISTERS=REGISTERS,
        script=Markup(script),
        # The page executes this script and no other one.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


# --- one run ---------------------------------------------------------------------------------------------------------


def view(number: int, run: RunReader, bounds: Bounds) -> View:
    calls = call_costs(run)
    course = fold(run.trials(), calls)
    best = course.best
    campaign = _campaign_of(run.folder)
    moves = _moves(course, bounds)
    kind, against = course.kind, _against(run)
    bars = [charts.CaseBar(t.case, t.ratio, *t.ci95) for t in best.evaluation.timings] if best else []
    return View(
        number=number,
        folder=str(run.folder),
        run=run,
        course=course,
        kind=kind if course.kinds else "no speedups yet",
        axes=[(over, charts.best_so_far([s], over, against)) for over, s in _series(course, "best so far").items()],
        verdicts=[v for v, _ in sum(course.by_operator.values(), Counter()).most_common()],
        credit=[credit for credit in run.operators() if credit.name not in FIRST_OPERATORS],
        lineage=_lineage(number, run, best) if best else None,
        diffs=_diffs(run, best) if best else [],
        final_diff=_final_diff(course),
        source=_source(course),
        campaign=campaign,
        variant=run.folder.resolve().parent.name if campaign else "",
        archive=_archive(course),
        cases=_cases(course),
        case_chart=charts.case_speedups(bars, kind, against) if bars else None,
        roofline=charts.roofline(moves, bounds.bytes_per_s, bounds.flops_per_s, kind) if moves else None,
        bounds=bounds,
        moves=moves,
        models=run.models(),
        environment=list(_flat({"versions": run.info.versions, **run.info.environment})),
        running_s=_running_s(run),
        pending=len(run.pending()),
    )


def fold(trials: Iterable[Trial], calls: Sequence[CallCost]) -> Course:
    """`calls`: of language models, in the order they were asked."""
    course, of_trial = Course(), {call.trial: call for call in calls if call.trial is not None}
    tokens = _tokens_by_trial(calls)
    for trial in trials:
        evaluation, operator = trial.evaluation, trial.proposal.operator
        course.trials += operator not in FIRST_OPERATORS
        course.at["trials"] = float(course.trials)
        course.at["GPU seconds"] += evaluation.seconds.get("time", 0.0)
        course.at["tokens"] += tokens.get(trial.index, 0.0)
        course.seconds.update(evaluation.seconds)  # type: ignore[arg-type]  # counts may be fractions
        course.cost.update(trial.proposal.cost)  # type: ignore[arg-type]
        course.by_operator.setdefault(operator, Counter())[evaluation.verdict] += 1
        if trial.index in of_trial:
            course.by_model.setdefault(of_trial[trial.index].model, Counter())[evaluation.verdict] += 1
        if trial.index == 0:
            course.seed = trial
        if trial.fitness is None:
            course.messages[evaluation.verdict.value, evaluation.message.partition("\n")[0]] += 1
        elif trial.proposal.is_kernel:
            _improve(course, trial, trial.fitness)
    return course


def _improve(course: Course, trial: Trial, fitness: Fitness) -> None:
    course.kinds.add(fitness.kind)
    course.dots.append((dict(course.at), fitness.speedup))
    niche = niche_of(trial.evaluation)
    if fitness.speedup > course.niches.get(niche, (0.0, 0))[0]:
        course.niches[niche] = (fitness.speedup, trial.index)
    if course.best is None or course.best.fitness is None or fitness.speedup > course.best.fitness.speedup:
        course.best = trial
        course.steps.append((dict(course.at), trial))


def _tokens_by_trial(calls: Sequence[CallCost]) -> dict[int, float]:
    """Tokens by trial; what was spent on answers that became none is added to the next that did."""
    tokens: dict[int, float] = {}
    spent = 0.0
    for call in calls:
        spent += (call.tokens_in or 0) + (call.tokens_out or 0)
        if call.trial is not None:
            tokens[call.trial], spent = spent, 0.0
    return tokens


def _series(course: Course, name: str) -> dict[str, charts.Series]:
    """Best so far over each axis on which something was spent."""
    found = {}
    every = max(1, -(-len(course.dots) // DOTS))
    for over, end in course.at.items():
        if not end or not course.steps:
            continue
        steps = [
            charts.Step(at[over], t.fitness.speedup, *t.fitness.ci95, f"trial {t.index}: {_interval(t.fitness)}")
            for at, t in course.steps
            if t.fitness is not None
        ]
        dots = [(at[over], speedup) for at, speedup in course.dots[::every]]
        found[over] = charts.Series(name, steps, end, course.kind, dots)
    return found


def overlay(views: Sequence[View]) -> list[tuple[str, Markup]]:
    """Best so far of all runs together, over each axis that at least two have."""
    by_axis: dict[str, list[charts.Series]] = {}
    for one in views:
        for over, series in _series(one.course, one.folder).items():
            by_axis.setdefault(over, []).append(charts.Series(series.name, series.steps, series.end, series.kind))
    baselines = {_against(one.run) for one in views}
    against = next(iter(baselines)) if len(baselines) == 1 else "the run's baseline"
    whole = [(over, series) for over, series in by_axis.items() if len(series) == len(views)]
    return [(over, charts.best_so_far(series, over, against)) for over, series in whole]


def _against(run: RunReader) -> str:
    """What the speedups of a run are over, in the words of a chart."""
    kind = run.info.config.baseline_kind
    return kind.text if kind.pytorch else "the seed"


# --- campaigns -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VariantRow:
    """A variant of a campaign.  `means`: over all tasks, then of each; None if no run of it is there."""

    name: str
    runs: int
    means: Sequence[float | None]
    settings: str  # that differ from the first variant's


@dataclass(frozen=True)
class VariantTable:
    """The variants of one campaign, as far as its runs are in the report."""

    campaign: str
    tasks: Sequence[str]
    rows: Sequence[VariantRow]


def _campaign_of(run: Path) -> Path | None:
    """The folder of the campaign that a run is of; None if it is of none."""
    from evo.campaign.spec import FILE as CAMPAIGN

    above = run.resolve().parents  # CAMPAIGN/runs/TASK/VARIANT/seed-N; earlier versions wrote cells
    return (
        above[3] if len(above) > 3 and above[2].name in ("runs", "cells") and (above[3] / CAMPAIGN).exists() else None
    )


def variants(views: Sequence[View]) -> list[VariantTable]:
    """A table for each campaign of several variants."""
    campaigns = dict.fromkeys(v.campaign for v in views if v.campaign is not None)
    tables = (_variants_of(campaign, [v for v in views if v.campaign == campaign]) for campaign in campaigns)
    return [table for table in tables if len(table.rows) > 1]


def _variants_of(campaign: Path, views: Sequence[View]) -> VariantTable:
    from evo.campaign.spec import read_plan

    settings = read_plan(campaign).settings
    first = next(iter(settings.values()))
    tasks = list(dict.fromkeys(_task_of(v) for v in views))
    rows = []
    for name, own in settings.items():
        mine = [v for v in views if v.variant == name]
        by_task = [_mean([v for v in mine if _task_of(v) == task]) for task in tasks]
        known = [mean for mean in by_task if mean is not None]
        differing = (f"{key} {own[key]}" for key in own if own[key] != first.get(key) and key != "plugins")
        means = [stats.geometric_mean(known) if known else None, *by_task]
        rows.append(VariantRow(name, len(mine), means, ", ".join(differing)))
    return VariantTable(str(campaign), tasks, rows)


def _task_of(one: View) -> str:
    return Path(one.folder).resolve().parents[1].name


def _mean(views: Sequence[View]) -> float | None:
    """The geometric mean of the best speedups, 1 for those that may be no gain; None without a run."""
    gains = [gain(v.course.best) for v in views if v.course.best is not None]
    return stats.geometric_mean(gains) if gains else None


# --- the way to the best ---------------------------------------------------------------------------------------------


def _lineage(number: int, run: RunReader, best: Trial) -> Markup:
    main = {trial.index for trial in run.lineage(best.index)}
    ancestors = _ancestors(run, best)
    if len(ancestors) > ANCESTORS:
        ancestors = {index: trial for index, trial in ancestors.items() if index in main}
    nodes = {
        index: charts.LineageNode(
            index=index,
            parents=trial.proposal.parents,
            operator=trial.proposal.operator,
            label=_outcome(trial),
            main=index in main,
            link=f"run{number}-trial{index}" if index in main else "",
        )
        for index, trial in sorted(ancestors.items())
    }
    return charts.lineage(nodes)


def _ancestors(run: RunReader, best: Trial) -> dict[int, Trial]:
    """`best` and all it descends from, by index; parents that are not evaluated are left out."""
    found, waiting = {best.index: best}, [best]
    while waiting:
        for parent in waiting.pop().proposal.parents:
            trial = run.trial(parent)
            if parent not in found and isinstance(trial, Trial):
                found[parent] = trial
                waiting.append(trial)
    return found


def _diffs(run: RunReader, best: Trial) -> list[dict[str, Any]]:
    """Returns the diff of each step on the line of first parents, from the seed on."""
    line = run.lineage(best.index)[::-1]
    steps = []
    for old, new in zip([None, *line[:-1]], line, strict=True):
        source = new.proposal.candidate.source
        patch = diff(old.proposal.candidate.source, source, f"trial {old.index}", f"trial {new.index}") if old else ""
        steps.append({"trial": new, "outcome": _outcome(new), "diff": patch})
    return steps


def _source(course: Course) -> str:
    if course.best is None:
        return ""
    return course.best.proposal.candidate.source if course.best.index == 0 else best_source(course.best)


def _final_diff(course: Course) -> str:
    """Returns the diff from the seed to the source to use, with its chosen configuration."""
    if course.seed is None or course.best is None or course.best.index == 0 or not course.seed.proposal.is_kernel:
        return ""
    return diff(course.seed.proposal.candidate.source, best_source(course.best), "seed/kernel.py", "best/kernel.py")


# --- tables ----------------------------------------------------------------------------------------------------------


def _archive(course: Course) -> list[dict[str, Any]]:
    """Returns a row for each bottleneck and number of warps, with a cell for each class of registers."""
    if not course.niches:
        return []
    most = max(speedup for speedup, _ in course.niches.values())
    rows: dict[tuple[str, int], list[list[dict[str, Any]]]] = {}
    for niche, (speedup, index) in sorted(course.niches.items()):
        row = rows.setdefault((niche.bottleneck, niche.warps), [[] for _ in REGISTERS])
        elite = {"speedup": f"{speedup:.2f}×", "trial": index, "shared": SHARED[niche.shared], "share": speedup / most}
        row[niche.registers].append(elite)
    return [{"bottleneck": b, "warps": w, "cells": cells} for (b, w), cells in sorted(rows.items())]


def _cases(course: Course) -> list[dict[str, Any]]:
    """A row for each tune case of the best kernel."""
    if course.best is None:
        return []
    rows = []
    kind = course.best.fitness.kind if course.best.fitness else ""
    for timing in course.best.evaluation.timings:
        ours, seed = timing.median_us, timing.baseline_median_us
        low, high = timing.ci95
        interval = f"{timing.ratio:.2f}× [{low:.2f}, {high:.2f}]"
        row = {"case": timing.case, "us": ours, "seed_us": seed, "speedup": interval, "kind": kind}
        rows.append({**row, "attainable_us": timing.attainable_us, "attained": timing.attained})
    return rows


def _moves(course: Course, bounds: Bounds) -> list[charts.Move]:
    """Returns the rates of seed and best for each case whose work is known."""
    moves = []
    for row in _cases(course):
        flops, moved = bounds.work.get(row["case"], (0.0, 0.0))
        if flops > 0 and moved > 0:
            moves.append(charts.Move(row["case"], flops / moved, 1e6 * flops / row["seed_us"], 1e6 * flops / row["us"]))
    return moves


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _running_s(run: RunReader) -> float:
    """Seconds between starts and ends; what a killed process did is not known."""
    total, started = 0.0, None
    for kind, _, at in run.events():
        if kind in ("started", "resumed"):
            started = at
        elif kind == "ended" and started is not None:
            total, started = total + at - started, None
    return total


def _interval(fitness: Fitness) -> str:
    low, high = fitness.ci95
    return f"{fitness.speedup:.2f}× [{low:.2f}, {high:.2f}]"


def _outcome(trial: Trial) -> str:
    if trial.fitness is None:
        return trial.evaluation.verdict.value.replace("_", " ")
    return f"{trial.fitness.speedup:.2f}×{' est.' if trial.fitness.estimated else ''}"
