"""Writes the comparison of a campaign's variants: tables in Markdown and LaTeX (booktabs), figures as PDF and PNG.

Estimates are marked as such.  Only the figures need matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import stats
from analysis.comparison import ENOUGH, Against, Comparison, Effect
from analysis.outcomes import Outcome
from evo.core.text import counted
from evo.search.budget import in_words

ESTIMATED = "estimated by a model of the target; no GPU measured anything here"
MEASURED = "measured on a GPU"

_SPECIAL = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "×": r"$\times$", "–": "--"})

Rows = list[list[str]]

# Okabe and Ito's palette, which colour-blind readers can tell apart; lines differ in style too, for printing in grey.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_STYLES = ("-", "--", "-.", ":")
_COLUMNS = 3  # panels side by side
_DPI = 150


# --- tables ---------------------------------------------------------------------------------------------------------


def markdown(comparison: Comparison) -> str:
    """Returns the tables of variants, of their effects against the first one, and of single tasks."""
    parts = [f"{caption(comparison)}\n", _markdown(*variants(comparison))]
    if comparison.against:
        first = comparison.variants[0].name
        parts += [f"\nAgainst {first}. {note(comparison)}\n", _markdown(*effects(comparison))]
    parts += ["\nGeometric mean by task:\n", _markdown(*by_task(comparison))]
    return "\n".join(parts) + "\n"


def latex(comparison: Comparison) -> str:
    """Returns the same three tables, as `table` environments for `\\usepackage{booktabs}`."""
    first = comparison.variants[0].name
    tables = [("variants", caption(comparison), variants(comparison))]
    if comparison.against:
        tables.append(("effects", f"Against {first}. {note(comparison)}", effects(comparison)))
    tables.append(("tasks", f"Geometric mean of the best speedup by task ({_kind(comparison)}).", by_task(comparison)))
    return "\n".join(_latex(f"tab:ablation-{name}", text, *table) for name, text, table in tables)


NOTE = (
    "Ratio: of the geometric means; area: its difference; 95% intervals by the hierarchical bootstrap over tasks and "
    "seeds; A12: chance that a run of the variant ends above one of the first (ties half), mean over the tasks; "
    "p: paired, of {tested}, by permutation / Wilcoxon, each adjusted for the number of variants (Holm)."
)


def note(comparison: Comparison) -> str:
    """Returns what the table of effects shows."""
    if comparison.enough:
        tasks = len(comparison.tasks)
        if tasks == 1:
            return NOTE.format(tested="the seeds of the one task, so it speaks of that task alone")
        return NOTE.format(tested=f"the means of the {tasks} tasks (at least {2 ** (1 - tasks):.2g} unadjusted)")
    return (
        f"Ratio: of the geometric means; area: its difference; A12: chance that a run of the variant ends above one of "
        f"the first (ties half), mean over the tasks. {counted(comparison.pairs, 'pair')} of runs, fewer than "
        f"{ENOUGH}: too few for intervals and tests."
    )


def caption(comparison: Comparison) -> str:
    over, start = ("", "from the first candidate on")
    if comparison.gpu_seconds is not None:  # verifying and timing, see `evo.search.budget`
        over, start = " over GPU seconds (verifying and timing)", "from the start"
    return (
        f"Best speedup over the seed kernel after {in_words(comparison.budget, comparison.gpu_seconds)}, "
        f"{counted(len(comparison.tasks), 'task')}, {counted(comparison.pairs, 'run')} a variant; {_kind(comparison)}. "
        f"Success: a gain beyond its 95% interval; runs without one count as 1.0×. "
        f"Area: under the best-so-far curve{over} (log scale), 1 is the best of any variant {start}."
    )


def variants(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = ["variant", "success", f"geometric mean{mark}", f"median{mark}", f"mean of successes{mark}", f"area{mark}"]
    return head, [
        [
            variant.name,
            f"{variant.successes}/{variant.runs}",
            f"{variant.mean:.2f}×{_span(comparison, variant.mean_ci)}",
            f"{variant.median:.2f}×",
            "–" if variant.of_successes is None else f"{variant.of_successes:.2f}×",
            f"{variant.area:.3f}{_span(comparison, variant.area_ci, 3)}",
        ]
        for variant in comparison.variants
    ]


def effects(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = ["variant", f"ratio{mark}", "A12", "p", f"area{mark}", "A12 of areas", "p of areas"]
    return head, [_effect_row(comparison, against) for against in comparison.against]


def by_task(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = [f"task{mark}", *(variant.name for variant in comparison.variants)]
    rows = [
        [task, *(f"{variant.by_task[i]:.2f}×" for variant in comparison.variants)]
        for i, task in enumerate(comparison.tasks)
    ]
    return head, rows


def _effect_row(comparison: Comparison, against: Against) -> list[str]:
    best, area = against.best, against.area
    return [
        against.name,
        f"{best.size:.3f}{_span(comparison, best.ci, 3)}",
        _a12(comparison, best),
        _p(comparison, best),
        f"{area.size:+.3f}{_span(comparison, area.ci, 3)}",
        _a12(comparison, area),
        _p(comparison, area),
    ]


def _a12(comparison: Comparison, effect: Effect) -> str:
    return f"{effect.a12:.2f}" + (f" ({stats.magnitude(effect.a12)})" if comparison.enough else "")


def _p(comparison: Comparison, effect: Effect) -> str:
    return f"{_small(effect.p_flips)} / {_small(effect.p_wilcoxon)}" if comparison.enough else "–"


def _small(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _span(comparison: Comparison, ends: tuple[float, float], digits: int = 2) -> str:
    """Returns an interval to follow its number; "" if there are too few pairs for one."""
    return f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if comparison.enough else ""


def _kind(comparison: Comparison) -> str:
    return ESTIMATED if comparison.estimated else MEASURED


def _markdown(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex(label: str, text: str, head: Sequence[str], rows: Rows) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(_SPECIAL).replace("<", "$<$") for cell in cells) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{text.translate(_SPECIAL)}}}",
            rf"\label{{{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            line(head),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


# --- figures --------------------------------------------------------------------------------------------------------


def draw(folder: Path, comparison: Comparison, outcomes: Sequence[Outcome]) -> list[Path]:
    """Writes curves.* (best so far by task) and effects.* (against the first variant) to `folder`; returns paths."""
    paths = _save(_curves(comparison, outcomes), folder / "curves")
    if comparison.against:
        paths += _save(_effects_figure(comparison), folder / "effects")
    return paths


def _curves(comparison: Comparison, outcomes: Sequence[Outcome]) -> Any:
    """Geometric means over the seeds, with their 95% bootstrap intervals as bands if there are enough pairs."""
    tasks = comparison.tasks
    columns = min(_COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure, panels = _panels(rows, columns, width=3.2 * columns, height=2.6 * rows + 0.9)
    for panel, task in zip(panels, tasks, strict=False):
        for number, variant in enumerate(comparison.variants):
            x, logs = _sampled([o for o in outcomes if o.task == task and o.variant == variant.name])
            look = {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _STYLES[number % len(_STYLES)]}
            panel.step(x, np.exp(logs.mean(axis=0)), where="post", label=variant.name, linewidth=1.4, **look)
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


def _effects_figure(comparison: Comparison) -> Any:
    """A forest plot: ratio of the geometric means, and difference of the areas."""
    figure, panels = _panels(1, 2, width=8.0, height=0.42 * len(comparison.against) + 1.3)
    first = comparison.variants[0].name
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


def _panels(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
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
