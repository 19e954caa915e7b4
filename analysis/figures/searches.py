"""Computes the figures of searches over built-in tasks: single runs, runs with a model, campaigns of variants."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import campaign_report, outcomes
from analysis.comparison import Comparison, compare
from analysis.figures.text import Figures, median, table, times, within
from analysis.stats import geometric_mean
from evo.core.records import Trial
from evo.storage.queries import RunReader

# Later campaigns with the settings of `h200-structural` in their first variant: the same tasks, budget and operators.
LATER = ("h200-strategies", "h200-surrogate")

# --- one run of each built-in task ------------------------------------------------------------------------------------


def structural(folder: Path) -> Figures:
    """Returns the figures of one run of each built-in task, and beside them what later runs came to."""
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
    speedups = [run["speedup"] for run in runs]
    later = {run["task"]: [o.best for o in _later(folder.parent) if o.task == run["task"]] for run in runs}
    total = sum(map(len, later.values()))
    outside = sum(not run["ci95"][0] <= best <= run["ci95"][1] for run in runs for best in later[run["task"]])
    spread = [(run["task"], within(run["speedup"], *run["ci95"]), *_spread(later[run["task"]])) for run in runs]
    return {
        "tasks": str(len(runs)),
        "least": times(min(speedups)),
        "greatest": times(max(speedups)),
        "median": median(speedups),
        "mean": times(geometric_mean(speedups)),
        "later": str(total),
        "later-outside": str(outside),
        "later-median": median([statistics.median(found) for found in later.values()]),
        "table": table(_HEAD, [_row(run) for run in runs]),
        "spread": table(("task", "the run above", "later runs", "least", "median", "greatest"), spread),
    }


_HEAD = ("task", "cases", "seed µs", "best µs", "speedup", "verdicts", "candidates", "seconds")


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    cases, verdicts = run["cases"], sorted(run["verdicts"].items(), key=lambda found: -found[1])
    return (
        run["task"],
        " / ".join(case["case"] for case in cases),
        " / ".join(f"{case['seed_us']:.4g}" for case in cases),
        " / ".join(f"{case['best_us']:.4g}" for case in cases),
        within(run["speedup"], *run["ci95"], digits=3),
        ", ".join(f"{count} {verdict}" for verdict, count in verdicts),
        str(run["candidates"]),
        f"{run['seconds']:.1f}",
    )


def _later(reference: Path) -> Iterator[outcomes.Outcome]:
    for name in LATER:
        yield from (o for o in outcomes.load(reference / name / outcomes.FILE) if o.variant == "full")


def _spread(found: Sequence[float]) -> tuple[str, ...]:
    return str(len(found)), *(f"{value:.2f}" for value in (min(found), statistics.median(found), max(found)))


# --- runs with a model ------------------------------------------------------------------------------------------------


_EARLY = 6  # answers about the seed kernel, before any was evaluated


def with_a_model(folder: Path) -> Figures:
    """Returns the figures of the runs in a folder, each with its store: the best, verdicts, what operators gave."""
    rows, answers, right, better = [], Counter[str](), Counter[str](), Counter[str]()
    figures: Figures = {}
    for store in sorted(folder.glob("*/run.sqlite")):
        with RunReader(store.parent) as run:
            trials, best = list(run.trials()), run.best()
            lineage = [t.proposal.operator.split("@")[0] for t in run.lineage(best.index if best else 0)]
        assert best is not None and best.fitness is not None  # a run has its seed at least
        task, known = store.parent.name, {trial.index: trial for trial in trials}
        figures[task] = f"{best.fitness.speedup:.1f}×"
        figures[f"{task}-ci"] = within(best.fitness.speedup, *best.fitness.ci95)
        candidates = [trial for trial in trials if trial.index]
        verdicts = Counter(trial.evaluation.verdict.value for trial in candidates)
        said = ", ".join(
            f"{count} {verdict}" for verdict, count in sorted(verdicts.items(), key=lambda f: (-f[1], f[0]))
        )
        early = max(t.fitness.speedup for t in trials if t.index <= _EARLY and t.fitness)
        winner = " → ".join(f"`{name}`" for name in reversed(lineage) if name != "seed")
        rows.append(
            (task, within(best.fitness.speedup, *best.fitness.ci95), _times(best), f"{early:.2f}", said, winner)
        )
        for trial in candidates:
            name = trial.proposal.operator.split("@")[0]
            answers[name] += 1
            right[name] += trial.fitness is not None
            better[name] += _beats_parents(trial, known)
    operators = [(f"`{name}`", str(n), str(right[name]), str(better[name])) for name, n in sorted(answers.items())]
    return figures | {
        "table": table(
            ("task", "speedup of the best", "cases, µs: seed → best", f"after {_EARLY} answers", "verdicts", "winner"),
            rows,
        ),
        "operators": table(("operator", "answers", "ok", "better than all parents"), operators),
    }


def _times(trial: Trial) -> str:
    return ", ".join(f"{_us(t.baseline_median_us)} → {_us(t.median_us)}" for t in trial.evaluation.timings)


def _us(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _beats_parents(trial: Trial, known: Mapping[int, Trial]) -> bool:
    parents = [known[index].fitness for index in trial.proposal.parents]
    mine = trial.fitness
    return mine is not None and all(p is not None and mine.speedup > p.speedup for p in parents)


def through_tools(folder: Path) -> Figures:
    """Returns the estimates of the kernels that a model evaluated through the tools of a service."""
    lines = (folder / "transcript.jsonl").read_text(encoding="utf-8").splitlines()
    calls = [json.loads(line) for line in lines]
    evaluated = [json.loads(call["answer"]) for call in calls if call["tool"] == "evaluate_kernel"]
    rows = [(str(n), f"{found['speedup']:.2f}", found["verdict"]) for n, found in enumerate(evaluated, 1)]
    last = evaluated[-1]
    return {
        "calls": str(len(calls)),
        "kernels": str(len(evaluated)),
        "last-ci": within(last["speedup"], *last["ci95"]),
        "table": table(("kernel", "estimated speedup over the seed kernel", "verdict"), rows),
    }


# --- campaigns of variants --------------------------------------------------------------------------------------------


def campaign(folder: Path) -> Figures:
    """Returns the figures of a campaign: variants, their effects against the first, means after some candidates."""
    found = outcomes.load(folder / outcomes.FILE)
    comparison = compare(found, variants(folder))
    figures = {"tasks": str(len(comparison.tasks)), "runs": str(comparison.pairs), "table": _variants(comparison)}
    for against in comparison.against:
        best, area = against.best, against.area
        figures[f"{against.name}.ratio"] = within(best.size, *best.ci, digits=3)
        figures[f"{against.name}.p"] = f"{_p(best.p_flips)} and {_p(best.p_wilcoxon)}"
        figures[f"{against.name}.area"] = within(area.size, *area.ci, digits=3)
        figures[f"{against.name}.area-p"] = f"{_p(area.p_flips)} and {_p(area.p_wilcoxon)}"
        better = sum(
            a > b for a, b in zip(_by_task(comparison, against.name), comparison.variants[0].by_task, strict=True)
        )
        figures[f"{against.name}.better-tasks"] = f"{better} of {len(comparison.tasks)}"
    return figures | {"by-candidates": _by_candidates(comparison, found)}


def variants(folder: Path) -> tuple[str, ...]:
    """Returns the variants of a campaign's folder, in their order."""
    from evo.campaign.spec import read_plan

    return tuple(read_plan(folder).variants)


def _by_task(comparison: Comparison, name: str) -> tuple[float, ...]:
    return next(variant.by_task for variant in comparison.variants if variant.name == name)


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _variants(comparison: Comparison) -> str:
    """Returns the table of variants with their effects against the first one."""
    head, rows = campaign_report.variants(comparison)
    effect_head, effects = campaign_report.effects(comparison)
    beside = [["", ""], *([row[1], row[3]] for row in effects)]
    first = comparison.variants[0].name
    return table([*head[:4], f"{effect_head[1]} to `{first}`", "p (permutation / Wilcoxon, Holm)"],
                 [[*row[:4], *more] for row, more in zip(rows, beside, strict=True)])  # fmt: skip


_AFTER = (4, 8, 16, 32, 64)


def _by_candidates(comparison: Comparison, found: Sequence[outcomes.Outcome]) -> str:
    """Returns the geometric means over all runs after some numbers of candidates."""
    after = [n for n in _AFTER if n <= comparison.budget]
    groups = [[o for o in found if o.task == task] for task in comparison.tasks]
    seeds = [{o.seed for o in group if _all_have(group, o.seed, len(comparison.variants))} for group in groups]

    def mean(variant: str, n: int) -> float:
        """Returns the mean over the tasks, as the comparison has it for the last candidate."""
        pairs = zip(groups, seeds, strict=True)
        runs = [[o.curve[n - 1] for o in group if o.variant == variant and o.seed in kept] for group, kept in pairs]
        return geometric_mean([geometric_mean(curve) for curve in runs])

    rows = [(v.name, *(times(mean(v.name, n)) for n in after)) for v in comparison.variants]
    return table(("geometric mean after", *(f"{n}" for n in after)), rows)


def _all_have(group: Sequence[outcomes.Outcome], seed: int, count: int) -> bool:
    """Returns whether all variants finished that seed of a task."""
    return sum(o.seed == seed for o in group) == count
