"""Computes the figures of kernels of built-in tasks beside PyTorch, libraries, and what is attainable."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from analysis import baselines
from analysis.baselines import BEST, NAMES, SEED, BaselineRow
from analysis.figures.text import Figures, geometric, percent, table, times
from analysis.stats import geometric_mean


def beside(folder: Path) -> Figures:
    """Returns the figures of `times.json`, which `evo tasks time` wrote; those of a task are means over its cases."""
    rows, _ = baselines.load(folder / "times.json")
    by_task: dict[str, list[BaselineRow]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    attained = {kernel: [_attained(found, kernel) for found in by_task.values()] for kernel in (SEED, BEST)}
    over = {name: [r for found in by_task.values() if (r := _over(found, name)) is not None] for name in NAMES}
    return {
        "tasks": str(len(by_task)),
        "seed-attained": percent(statistics.median(attained[SEED])),
        "attained": percent(statistics.median(attained[BEST])),
        "least-attained": percent(min(attained[BEST])),
        "over-eager": geometric(over["eager"]),
        "over-compile": geometric(over["torch.compile"]),
        "over-library": geometric(over["library"]),
        "with-library": str(len(over["library"])),
        "faster-than-compile": f"{sum(ratio > 1 for ratio in over['torch.compile'])} of {len(by_task)}",
        "table": table(
            ("task", "seed, of attainable", "best, of attainable", *(f"best over {name}" for name in NAMES)),
            [_line(task, found) for task, found in by_task.items()],
        ),
        "cases": baselines.table(rows).rstrip(),
    }


def _line(task: str, rows: Sequence[BaselineRow]) -> list[str]:
    ratios = [_over(rows, name) for name in NAMES]
    shares = [percent(_attained(rows, kernel)) for kernel in (SEED, BEST)]
    return [task, *shares, *("none" if ratio is None else times(ratio) for ratio in ratios)]


def _attained(rows: Sequence[BaselineRow], kernel: str) -> float:
    """Returns the geometric mean over the cases of attainable time over the kernel's."""
    least = {row.case: row.attainable_us / row.kernel_us for row in rows if row.kernel == kernel and row.attainable_us}
    return geometric_mean(list(least.values()))


def _over(rows: Sequence[BaselineRow], name: str) -> float | None:
    """Returns the geometric mean over the cases of a baseline's time over the best kernel's, None without times."""
    ratios = [row.ratio for row in rows if row.kernel == BEST and row.baseline == name and not row.error]
    return geometric_mean(ratios) if ratios else None
