"""Computes the figures of the benchmark of the checker, `analysis.benchmarks.bench_checker`: wrong kernels refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis import stats
from analysis.figures.suites import Rows, csv_rows
from analysis.figures.text import Figures, table
from evo.core.records import Verdict

NOT_JUDGED = ("", Verdict.COMPILE_ERROR)  # what does not compile says nothing of the checker
# The first place that shows a fault.
CLASSES = {"": "all", "cpu": "at sizes for a CPU", "gpu": "at sizes for a GPU", "elsewhere": "at sizes in between"}


def checker(folder: Path) -> Figures:
    """Returns the figures of both evaluators, from one row a kernel, evaluator and folder."""
    rows = {device: csv_rows(folder / f"{device}.csv") for device in ("gpu", "cpu")}
    figures: Figures = {"refused": _refused(rows), "operators": _operators(rows), "survivors": _survivors(rows)}
    both = set[str]()
    for device, found in rows.items():
        wrong, right = _of(found, "wrong"), _of(found, "right")
        both |= {row["id"] for row in wrong}
        figures[f"{device}.wrong"] = str(len(wrong))
        figures[f"{device}.refused"] = _share(_refusals(wrong, "verdict"))
        figures[f"{device}.right"] = f"{sum(row['verdict'] == Verdict.OK for row in right)} of {len(right)}"
        figures[f"{device}.rule"] = _share(_refusals(wrong, "rule"))
    return figures | {"wrong": str(len(both))}


def _of(rows: Rows, seen: str) -> Rows:
    """Returns mutants that are seen to be wrong, or right kernels seen to be so, that the evaluator judged."""
    return [r for r in rows if r["kind"] == r["seen"] == seen and r["verdict"] not in NOT_JUDGED]


def _refusals(rows: Rows, column: str) -> list[bool]:
    """Returns whether each wrong kernel was refused, of those that were judged."""
    return [row[column] != Verdict.OK for row in rows if row[column] not in NOT_JUDGED]


def _share(refused: Sequence[bool]) -> str:
    if not refused:
        return "none"
    low, high = stats.share_interval(sum(refused), len(refused))
    return f"{sum(refused)} of {len(refused)} [{100 * low:.1f} %, {100 * high:.1f} %]"


def _refused(rows: dict[str, Rows]) -> str:
    """Returns wrong kernels refused by each evaluator, by the place that shows it."""
    lines = []
    for place, words in CLASSES.items():
        chosen = {d: [r for r in _of(found, "wrong") if place in ("", r["class"])] for d, found in rows.items()}
        lines.append((words, *(_share(_refusals(chosen[device], "verdict")) for device in rows)))
    rules = (_share(_refusals(_of(found, "wrong"), "rule")) for found in rows.values())
    return table(("wrong kernels refused", "on a GPU", "without a GPU"), [*lines, ("by KernelBench's rule", *rules)])


def _operators(rows: dict[str, Rows]) -> str:
    names = sorted({row["operator"] for found in rows.values() for row in _of(found, "wrong")})
    lines = []
    for name in names:
        of = [[r for r in _of(found, "wrong") if r["operator"] == name] for found in rows.values()]
        lines.append((name, *(_share(_refusals(found, "verdict")) for found in of), _share(_refusals(of[0], "rule"))))
    return table(("fault", "on a GPU", "without a GPU", "KernelBench's rule, on a GPU"), lines)


def _survivors(rows: dict[str, Rows]) -> str:
    lines = [
        ("on a GPU" if device == "gpu" else "without", row["task"], row["kernel"], row["operator"], row["inputs"])
        for device, found in rows.items()
        for row in _of(found, "wrong")
        if row["verdict"] == Verdict.OK
    ]
    return table(("accepted", "task", "kernel", "fault", "wrong on inputs"), lines)
