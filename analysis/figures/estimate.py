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
    """Returns the table of `ranks.csv` by task, and the mean coefficient by origin of the candidates."""
    rows = csv_rows(folder / "ranks.csv")
    ranked = [row for row in rows if row["estimate_us"]]
    tasks = [list(found) for _, found in itertools.groupby(ranked, lambda row: (row["origin"], row["task"]))]
    tasks = [found for found in tasks if len(found) >= FEWEST]
    figures = {
        "ranks": _table(tasks),
        "ranks.refused": str(len(rows) - len(ranked)),
        "ranks.candidates": str(len(rows)),
    }
    for origin in ("rules", "answers"):
        found = [_coefficient(task) for task in tasks if task[0]["origin"] == origin]
        figures[f"ranks.{origin}"] = f"{statistics.fmean(found):.2f} ({min(found):.2f} to {max(found):.2f})"
    return figures


def _coefficient(rows: Rows) -> float:
    """Returns Spearman's coefficient of estimated and measured times."""
    times = [1 / s for s in _column(rows, "speedup")]
    return float(scipy.stats.spearmanr(_column(rows, "estimate_us"), times).statistic)


def _column(rows: Rows, name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _table(tasks: Sequence[Rows]) -> str:
    lines = []
    for rows in tasks:
        speedups = _column(rows, "speedup")
        near = [row for row in rows if float(row["speedup"]) * NEAR >= max(speedups)]
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
