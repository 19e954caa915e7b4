"""Compares the engines: tables in Markdown, figures as PNG, all numbers as JSON.

`write` reads the runs below a folder and writes their rows to `proposals.parquet`, `runs.json` and `killed.json`.  If
it has no runs it reads these files: a committed folder gives its tables again.  A seed of a task counts if every
engine has finished it.  Tasks are the units: seeds are averaged within a task, as logarithms of the best speedup.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.benchmarks.peers.collect import Row, collect
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = "settings.json"
FIRST = "evo"  # the others are compared with it
Curves = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # engine -> task -> a curve of each seed


@dataclass(frozen=True)
class Standing:
    """An engine after a number of proposals: geometric means over tasks, with a 95% interval over tasks and seeds.

    `area`: area under the curve, as `stats.area_under`.  `by_task`: median of the seeds.
    """

    engine: str
    mean: float
    ci95: tuple[float, float]
    half: float  # the mean after half of the proposals
    area: float
    by_task: Mapping[str, float]


@dataclass(frozen=True)
class Pairing:
    """The first engine over another one, task by task.

    `ratio`: geometric mean of best speedups; `p`: exact sign-flip test of the tasks' differences, Holm-adjusted.
    """

    engine: str
    ratio: float
    ci95: tuple[float, float]
    ahead: int
    equal: int
    behind: int
    p: float


def curves_of(rows: Sequence[Row]) -> dict[str, dict[str, list[list[float]]]]:
    """Best-so-far curves of each engine and task.  Raises ConfigError without rows."""
    by_run: dict[tuple[str, str, int], list[float]] = {}
    for row in sorted(rows, key=lambda r: int(r["proposal"])):
        by_run.setdefault((row["engine"], row["task"], row["seed"]), []).append(row["best"])
    engines = sorted({key[0] for key in by_run}, key=lambda name: (name != FIRST, name))
    blocks = sorted({key[1:] for key in by_run})
    if not blocks:
        raise ConfigError("expected a task and seed that every engine has finished, got none; make the runs first")
    length = max(map(len, by_run.values()))
    found: dict[str, dict[str, list[list[float]]]] = {engine: {} for engine in engines}
    for engine in engines:
        for task, seed in blocks:
            curve = by_run[engine, task, seed]
            padded = curve + curve[-1:] * (length - len(curve))  # an engine that ended earlier
            found[engine].setdefault(task, []).append(padded)
    return found


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows of the tasks and seeds that every engine has finished."""
    engines = {row["engine"] for row in rows}
    found: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        found.setdefault((row["task"], row["seed"]), set()).add(row["engine"])
    return [row for row in rows if found[row["task"], row["seed"]] == engines]


def standings(curves: Curves) -> list[Standing]:
    """Each engine's standing, in the order of the curves."""
    tasks = list(next(iter(curves.values())))
    ceilings = {task: max(c[-1] for by_task in curves.values() for c in by_task[task]) for task in tasks}
    found = []
    for engine, by_task in curves.items():
        logs = [[math.log(curve[-1]) for curve in by_task[task]] for task in tasks]
        low, high = stats.interval(logs)
        areas = [statistics.fmean(stats.area_under(c, ceilings[t]) for c in by_task[t]) for t in tasks]
        found.append(
            Standing(
                engine,
                mean_after(by_task, -1),
                (math.exp(low), math.exp(high)),
                mean_after(by_task, len(next(iter(by_task.values()))[0]) // 2 - 1),
                statistics.fmean(areas),
                {task: statistics.median(curve[-1] for curve in by_task[task]) for task in tasks},
            )
        )
    return found


def mean_after(by_task: Mapping[str, Sequence[Sequence[float]]], place: int) -> float:
    """Geometric mean over tasks of the tasks' geometric means, at a place of the curves."""
    return math.exp(statistics.fmean(_log_mean(curves, place) for curves in by_task.values()))


def pairings(curves: Curves) -> list[Pairing]:
    """The first engine against each other one, task by task."""
    first, *others = curves
    tasks = list(curves[first])
    raw = []
    for other in others:
        pairs = [
            [math.log(a[-1] / b[-1]) for a, b in zip(curves[first][task], curves[other][task], strict=True)]
            for task in tasks
        ]
        means = [statistics.fmean(group) for group in pairs]
        low, high = stats.interval(pairs)
        signs = [(mean > 1e-9) - (mean < -1e-9) for mean in means]
        counts = signs.count(1), signs.count(0), signs.count(-1)
        raw.append((other, statistics.fmean(means), low, high, counts, stats.sign_flips(means)))
    adjusted = stats.holm([each[-1] for each in raw])
    return [
        Pairing(other, math.exp(mean), (math.exp(low), math.exp(high)), *counts, p)
        for (other, mean, low, high, counts, _), p in zip(raw, adjusted, strict=True)
    ]


def _log_mean(curves: Sequence[Sequence[float]], place: int) -> float:
    return statistics.fmean(math.log(curve[place]) for curve in curves)


# --- files -----------------------------------------------------------------------------------------------------------


def keep_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings that all runs below a folder share.  Raises ConfigError if it has runs with others."""
    path = out / SETTINGS
    if path.exists() and (before := json.loads(path.read_text(encoding="utf-8"))) != settings:
        raise ConfigError(f"--out {out}: expected its settings {before}, got {dict(settings)}; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    _write_json(path, settings)


def write(out: Path, results: Path) -> str:
    """Writes all files of the summary of the runs in `out` into `results` and returns the tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not (out / SETTINGS).exists():
        raise ConfigError(f"--out {out}: expected {SETTINGS}, got none; make the runs first")
    settings = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    if (out / "runs").exists():
        rows, runs, killed = collect(out / "runs", settings)
        rows, runs = complete(rows), complete(runs)
        curves_of(rows)  # raises ConfigError if there is nothing to compare yet
        results.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), results / "proposals.parquet")
        _write_json(results / SETTINGS, settings)
        _write_json(results / "runs.json", runs)
        _write_json(results / "killed.json", killed)
    else:
        rows = pq.read_table(out / "proposals.parquet").to_pylist()
        runs, killed = (json.loads((out / f"{name}.json").read_text(encoding="utf-8")) for name in ("runs", "killed"))
    curves = curves_of(rows)
    found, pairs = standings(curves), pairings(curves)
    _write_json(results / "summary.json", {"standings": [*map(asdict, found)], "pairings": [*map(asdict, pairs)]})
    kind = "estimated" if settings["gpus"] == "none" else "measured"
    texts = [
        results_table(curves, found, kind),
        pairs_table(pairs),
        tasks_table(found),
        costs_table(runs),
        answers_table(rows),
    ]
    text = "\n".join([*texts, killed_table(killed)] if killed else texts)
    (results / "tables.md").write_text(text, encoding="utf-8")
    draw(curves, results / "curves.png", kind)
    return text


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return f"## {title}\n\n" + "\n".join(f"| {line} |" for line in lines) + "\n"


def results_table(curves: Curves, found: Sequence[Standing], kind: str) -> str:
    """The engines' best speedups, over all tasks."""
    by_task = next(iter(curves.values()))
    count, seeds = len(next(iter(by_task.values()))[0]), sum(map(len, by_task.values()))
    title = f"Best speedup ({kind}) after {count} proposals: {len(by_task)} tasks, {seeds} runs an engine"
    head = ["engine", "geometric mean [95%]", f"after {count // 2}", "area under the curve"]
    rows = [
        [s.engine, f"{s.mean:.2f} [{s.ci95[0]:.2f}, {s.ci95[1]:.2f}]", f"{s.half:.2f}", f"{s.area:.2f}"] for s in found
    ]
    return _table(title, head, rows)


def pairs_table(pairs: Sequence[Pairing]) -> str:
    """The first engine over the others."""
    head = ["evo over", "ratio [95%]", "tasks ahead, equal, behind", "p (Holm)"]
    return _table(
        "Task by task",
        head,
        [
            [
                p.engine,
                f"{p.ratio:.2f} [{p.ci95[0]:.2f}, {p.ci95[1]:.2f}]",
                f"{p.ahead}, {p.equal}, {p.behind}",
                f"{p.p:.3f}",
            ]
            for p in pairs
        ],
    )


def tasks_table(found: Sequence[Standing]) -> str:
    """The median of the seeds for each task."""
    tasks = list(found[0].by_task)
    rows = [[task, *(f"{s.by_task[task]:.2f}" for s in found)] for task in tasks]
    return _table("Median of the seeds", ["task", *(s.engine for s in found)], rows)


def costs_table(runs: Sequence[Row]) -> str:
    """What the engines themselves took: medians of the runs."""
    head = [
        "engine",
        "CPU until the first request, s",
        "CPU a proposal, s",
        "wall a proposal, s",
        "answers",
        "evaluations",
    ]
    rows = []
    for engine in sorted({r["engine"] for r in runs}, key=lambda name: (name != FIRST, name)):
        mine = [r for r in runs if r["engine"] == engine]
        middle = {
            key: statistics.median(r[key] for r in mine) for key in mine[0] if isinstance(mine[0][key], int | float)
        }
        figures = [f"{middle[key]:.3g}" for key in ("cpu_start_s", "cpu_s", "wall_s", "answers", "evaluations")]
        rows.append([engine, *figures])
    return _table("The engine's own cost, without the model and evaluations (medians)", head, rows)


def answers_table(rows: Sequence[Row]) -> str:
    """The kinds of the answers that each engine got, and what became of them."""
    engines = sorted({r["engine"] for r in rows}, key=lambda name: (name != FIRST, name))
    kinds = sorted({r["kind"] for r in rows})
    head = ["engine", *kinds, "evaluated", "ok", "faster than the best before"]
    table = []
    for engine in engines:
        mine = [r for r in rows if r["engine"] == engine]
        runs: dict[tuple[str, int], list[float]] = {}
        for row in mine:
            runs.setdefault((row["task"], row["seed"]), []).append(row["best"])
        better = sum(b > a for curve in runs.values() for a, b in zip([1.0, *curve], curve, strict=False))
        counts = [sum(r["kind"] == kind for r in mine) for kind in kinds]
        done = [sum(bool(r["verdict"]) for r in mine), sum(r["verdict"] == "ok" for r in mine), better]
        table.append([engine, *map(str, [*counts, *done])])
    return _table("Answers", head, table)


def killed_table(rows: Sequence[Row]) -> str:
    """What the engines lost by `kill -9`: sums over the runs."""
    keys = ("answers_before", "kernels_before", "kernels_lost", "evaluated_again", "answers_after")
    table = []
    for engine in dict.fromkeys(r["engine"] for r in rows):
        mine = [r for r in rows if r["engine"] == engine]
        kept = sum(r["best_known"] >= r["best_before"] for r in mine)
        table.append([engine, str(len(mine)), *(str(sum(r[k] for r in mine)) for k in keys), f"{kept} of {len(mine)}"])
    head = ["engine", "runs", *(key.replace("_", " ") for key in keys), "best before is known or beaten"]
    return _table("kill -9 while a kernel is evaluated, then the engine's own resume", head, table)


# --- figure ----------------------------------------------------------------------------------------------------------

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw(curves: Curves, path: Path, kind: str) -> None:
    """Draws the best speedup over proposals: the mean over tasks, and each task."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    tasks = list(next(iter(curves.values())))
    columns = 3
    rows = math.ceil((len(tasks) + 1) / columns)
    figure = Figure(figsize=(4 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(tasks) + 1 :]:
        panel.set_visible(False)
    _panel(
        panels[0], {e: [mean_after(by, i) for i in range(_length(by))] for e, by in curves.items()}, "geometric mean"
    )
    for panel, task in zip(panels[1:], tasks, strict=False):
        middle = {e: [statistics.median(v) for v in zip(*by[task], strict=True)] for e, by in curves.items()}
        _panel(panel, middle, f"{task}, median of seeds")
    panels[0].legend(fontsize=8)
    figure.supxlabel("answers of the model", fontsize=9)
    figure.supylabel(f"best speedup so far, {kind}", fontsize=9)
    figure.savefig(path, dpi=110)


def _length(by_task: Mapping[str, Sequence[Sequence[float]]]) -> int:
    return len(next(iter(by_task.values()))[0])


def _panel(panel: Axes, by_engine: Mapping[str, Sequence[float]], title: str) -> None:
    for place, (engine, values) in enumerate(by_engine.items()):
        style = STYLES[place % len(STYLES)]
        panel.step(range(len(values) + 1), [1.0, *values], where="post", label=engine, linestyle=style, linewidth=1.5)
    panel.set_title(title, fontsize=9)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
