"""Computes how well estimates rank candidates that were measured on a GPU."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import scipy

from analysis.figures.suites import Rows, csv_rows
from analysis.figures.text import Figures, table

NEAR = 1.5  # times the best measured time.  A search that is under way chooses among those.
FEWEST = 8  # candidates.  Fewer have no coefficient.


def estimate(folder: Path) -> Figures:
    """Returns the tables of `ranks.csv` by task and of `suites.csv` by suite, and mean coefficients."""
    rows = csv_rows(folder / "ranks.csv")
    ranked = [row for row in rows if row["estimate_us"]]
    tasks = _tasks(ranked, "origin")
    figures = {
        "ranks": _table(tasks),
        "ranks.refused": str(len(rows) - len(ranked)),
        "ranks.candidates": str(len(rows)),
    }
    for origin in ("rules", "answers"):
        figures[f"ranks.{origin}"] = _mean([task for task in tasks if task[0]["origin"] == origin])
    return figures | _suites(folder)


def _suites(folder: Path) -> Figures:
    """Returns the coefficients on suites that nothing was chosen with, from `suites.csv`, one row a candidate."""
    rows = csv_rows(folder / "suites.csv")
    tasks = _tasks(rows, "suite")
    lines = []
    for suite, group in itertools.groupby(tasks, lambda found: found[0]["suite"]):
        chosen = list(group)
        near = [found for task in chosen if len(found := _near(task)) >= FEWEST]
        lines.append((suite, str(len(chosen)), str(sum(map(len, chosen))), _mean(chosen), _mean(near) if near else ""))
    head = ("suite", "tasks", "candidates", "Spearman, mean over tasks", f"within {NEAR}× of the best")
    return {
        "suites": table(head, lines),
        "suites.candidates": str(len(rows)),
        "suites.tasks": str(len(tasks)),
        "suites.mean": _mean(tasks),
    }


def _tasks(rows: Rows, kind: str) -> list[Rows]:
    """Returns the candidates of each task that has enough, by the column `kind` and the task, as they come."""
    tasks = (list(found) for _, found in itertools.groupby(rows, lambda row: (row[kind], row["task"])))
    return [found for found in tasks if len(found) >= FEWEST]


def _near(rows: Rows) -> Rows:
    """Returns the candidates that are measured close to the best."""
    best = max(_column(rows, "speedup"))
    return [row for row in rows if float(row["speedup"]) * NEAR >= best]


def _mean(tasks: Sequence[Rows]) -> str:
    found = [_coefficient(task) for task in tasks]
    return f"{statistics.fmean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _coefficient(rows: Rows) -> float:
    """Returns Spearman's coefficient of estimated and measured speedups; 0 if all estimates are the same.

    Of an estimated time the order counts alone: less is faster.
    """
    times = "estimate_us" in rows[0]
    estimated = [-us for us in _column(rows, "estimate_us")] if times else _column(rows, "estimated_speedup")
    if len(set(estimated)) == 1:
        return 0.0
    return float(scipy.stats.spearmanr(estimated, _column(rows, "speedup")).statistic)


def _column(rows: Rows, name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _table(tasks: Sequence[Rows]) -> str:
    lines = []
    for rows in tasks:
        speedups = _column(rows, "speedup")
        near = _near(rows)
        lines.append([
            rows[0]["task"], rows[0]["origin"], str(len(rows)), f"{max(speedups) / min(speedups):.1f}×",
            f"{_coefficient(rows):.2f}", str(len(near)), f"{_coefficient(near):.2f}" if len(near) >= FEWEST else "",
        ])  # fmt: skip
    return table(
        (
            "task",
            "made by",
            "candidates",
            "slowest over fastest",
            "Spearman",
            f"within {NEAR}× of the best",
            "Spearman",
        ),
        lines,
    )
