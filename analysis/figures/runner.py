"""Computes the figures of the runner on a GPU: whole searches and campaigns, and a kernel compared with itself."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from analysis.figures.suites import Rows, csv_rows
from analysis.figures.text import Figures, geometric, table

NOTABLE = 1.01  # times as fast


def runner(folder: Path) -> Figures:
    """Returns the tables of searches, campaigns and answers of models, and of comparisons of equal kernels."""
    makers = {"searches": _searches, "campaign": _campaign, "answers": _answers, "same": _same}
    tables = {name: make(csv_rows(folder / f"{name}.csv")) for name, make in makers.items()}
    return tables | _allocation(csv_rows(folder / "allocation.csv"))


def _searches(rows: Rows) -> str:
    """Returns one row for the searches of a task by the same code; they are sorted so."""
    groups = itertools.groupby(rows, lambda row: (row["task"], row["code"], row["screen_budget"]))
    return table(
        (
            "task", "code", "estimates a draft", "searches", "candidates after 50 s", "best after 50 s", "candidates",
            "after s", "best then",
        ),
        [[*group, *_of_group(list(found))] for group, found in groups],
    )  # fmt: skip


def _of_group(rows: Rows) -> list[str]:
    def column(name: str, digits: int) -> str:
        return _middle([float(row[name]) for row in rows], digits)

    return [
        str(len(rows)), column("candidates_in_50_s", 0), column("best_in_50_s", 2), column("candidates", 0),
        column("search_s", 0), column("best", 2),
    ]  # fmt: skip


def _middle(values: Sequence[float], digits: int) -> str:
    """Returns the median and, if values differ, the range."""
    low, high = (f"{end:.{digits}f}" for end in (min(values), max(values)))
    return low if low == high else f"{statistics.median(values):.{digits}f} ({low} to {high})"


def _campaign(rows: Rows) -> str:
    return table(
        (
            "GPU", "code", "processes", "seed", "kernels", "candidates", "s", "candidates/s", "ended",
            "best over that of the first code",
        ),
        [
            [
                *(r[name] for name in ("gpu", "code", "processes", "seed", "kernels", "candidates")),
                f"{float(r['wall_s']):.0f}", f"{int(r['candidates']) / float(r['wall_s']):.2f}",
                r["ended"], r["best_over_old"] or "1",
            ]
            for r in rows
        ],
    )  # fmt: skip


def _allocation(rows: Rows) -> Figures:
    """Returns the figures of two campaigns of the same kernels: with equal budgets, and with budgets by headroom."""
    kinds = ("equal", "headroom")
    best = {kind: [float(row[f"best_{kind}"]) for row in rows] for kind in kinds}
    counts = {kind: sum(int(row[f"candidates_{kind}"]) for row in rows) for kind in kinds}
    ratios = [h / e for e, h in zip(best["equal"], best["headroom"], strict=True)]
    widest = max(range(len(rows)), key=lambda at: abs(math.log(ratios[at])))
    return {
        "allocation": table(
            ("budgets", "kernels", "candidates", "geometric mean"),
            [[kind, str(len(rows)), str(counts[kind]), geometric(best[kind])] for kind in kinds],
        ),
        "allocation.ratio": geometric(ratios),
        "allocation.better": str(sum(ratio > NOTABLE for ratio in ratios)),
        "allocation.worse": str(sum(ratio < 1 / NOTABLE for ratio in ratios)),
        "allocation.widest": rows[widest]["kernel"],
        "allocation.rest": geometric([ratio for at, ratio in enumerate(ratios) if at != widest]),
    }


def _answers(rows: Rows) -> str:
    return table(
        ("code", "kernel", "estimates an answer", "judged", "first question after s", "last verdict after s"),
        [
            [
                r["code"], r["kernel"], r["estimates_an_answer"], f"{r['judged']} of {r['answers']}",
                r["first_question_s"], r["last_verdict_s"] or "none",
            ]
            for r in rows
        ],
    )  # fmt: skip


def _same(rows: Rows) -> str:
    return table(
        ("time", "launches a sample", "ratio, least / median / greatest", "noise floor", "comparisons", "counted",
         "counted and ≥ 1.05"),
        [
            [
                f"{float(r['us']):.3g} µs", r["launches_per_sample"],
                " / ".join(f"{float(r[name]):.3f}" for name in ("least", "median", "greatest")),
                f"{float(r['noise_floor']):.3f}", r["comparisons"],
                f"{r['counted']} ({100 * int(r['counted']) / int(r['comparisons']):.1f} %)",
                r["counted_and_at_least_5_percent"],
            ]
            for r in rows
        ],
    )  # fmt: skip
