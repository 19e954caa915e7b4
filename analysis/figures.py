"""Figures of a comparison, as PDF and PNG.  The only module that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import stats
from analysis.comparison import Comparison
from analysis.outcomes import Outcome

# Okabe and Ito's palette, which colour-blind readers can tell apart; lines differ in style too, for printing in grey.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_STYLES = ("-", "--", "-.", ":")
_COLUMNS = 3  # panels side by side
_DPI = 150


def draw(folder: Path, comparison: Comparison, outcomes: Sequence[Outcome]) -> list[Path]:
    """curves.* (best so far, a panel a task) and effects.* (each arm against the first) in `folder`; their paths."""
    paths = _save(_curves(comparison, outcomes), folder / "curves")
    if comparison.against:
        paths += _save(_effects(comparison), folder / "effects")
    return paths


def _curves(comparison: Comparison, outcomes: Sequence[Outcome]) -> Any:
    """Geometric means over the seeds, with their 95% bootstrap intervals as bands if there are enough pairs."""
    tasks = comparison.tasks
    columns = min(_COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure, panels = _figure(rows, columns, width=3.2 * columns, height=2.6 * rows + 0.9)
    for panel, task in zip(panels, tasks, strict=False):
        for number, arm in enumerate(comparison.arms):
            x, logs = _sampled([o for o in outcomes if o.task == task and o.arm == arm.name])
            look = {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _STYLES[number % len(_STYLES)]}
            panel.step(x, np.exp(logs.mean(axis=0)), where="post", label=arm.name, linewidth=1.4, **look)
            if not comparison.enough:
                continue
            ends = np.exp([stats.interval([column], resamples=1000) for column in logs.T])
            panel.fill_between(x, ends[:, 0], ends[:, 1], step="post", color=look["color"], alpha=0.1, linewidth=0)
        _logarithmic(panel, integers=comparison.gpu_seconds is None)
        panel.set_title(task, fontsize=9)
        panel.set_xlabel("candidates" if comparison.gpu_seconds is None else "GPU seconds", fontsize=8)
        panel.set_ylabel("best speedup so far" + _mark(comparison), fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3, linewidth=0.5)
    for panel in panels[len(tasks) :]:
        panel.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 * columns, fontsize=8, frameon=False)
    return figure


def _sampled(runs: Sequence[Outcome]) -> tuple[Any, Any]:
    """(what the budget counts, logarithm of the best of each run there): each candidate, or wherever a run rises."""
    most = runs[0].gpu_seconds
    if most is None:
        logs = np.log([o.curve for o in runs])
        return np.arange(1, logs.shape[1] + 1), logs
    x = np.unique(np.concatenate([[most], *(o.at for o in runs)]))
    return x, np.log([np.array(o.curve)[np.searchsorted(o.at, x, side="right") - 1] for o in runs])


def _effects(comparison: Comparison) -> Any:
    """A forest plot: ratio of the geometric means, and difference of the areas."""
    figure, panels = _figure(1, 2, width=8.0, height=0.42 * len(comparison.against) + 1.3)
    first = comparison.arms[0].name
    names = [against.name for against in comparison.against]
    wanted = (
        ([a.best for a in comparison.against], f"best speedup, ratio to {first}", 1.0),
        ([a.area for a in comparison.against], f"area under the curve, minus {first}'s", 0.0),
    )
    for panel, (effects, label, nothing) in zip(panels, wanted, strict=True):
        sizes = np.array([e.size for e in effects])
        reach = np.abs(np.array([e.ci for e in effects]).T - sizes) if comparison.enough else None
        panel.errorbar(sizes, range(len(names)), xerr=reach, fmt="o", color=_COLOURS[1], markersize=4, capsize=3)
        panel.axvline(nothing, color=_COLOURS[0], linewidth=0.8)
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.set_xlabel(label + _mark(comparison), fontsize=8)
        panel.tick_params(labelsize=7, axis="x")
        panel.grid(alpha=0.3, linewidth=0.5, axis="x")
    return figure


def _logarithmic(panel: Any, *, integers: bool) -> None:
    """Speedups on a log scale with plain numbers; `integers`: nothing lies between two of the other axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    panel.set_yscale("log", base=2)
    low, high = panel.get_ylim()
    # A narrow axis has no power of two to name: then the steps between them get names too.
    steps = (1.0,) if high / low > 4 else (1.0, 1.25, 1.5, 1.75)
    panel.yaxis.set_major_locator(LogLocator(base=2, subs=steps))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.xaxis.set_major_locator(MaxNLocator(integer=integers, nbins=8))


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _mark(comparison: Comparison) -> str:
    return " (estimated)" if comparison.estimated else ""


def _save(figure: Any, stem: Path) -> list[Path]:
    """Both files, the same bytes for the same figure: no date inside."""
    paths = [stem.with_suffix(".pdf"), stem.with_suffix(".png")]
    figure.savefig(paths[0], metadata={"CreationDate": None})
    figure.savefig(paths[1], dpi=_DPI, metadata={"Software": None})
    return paths
