"""Comparisons as tables: Markdown to read, LaTeX (booktabs) for a paper.  Estimates say that they are."""

from __future__ import annotations

from collections.abc import Sequence

from analysis import stats
from analysis.comparison import ENOUGH, Against, Comparison, Effect
from evo.core.text import counted
from evo.search.budget import in_words

ESTIMATED = "estimated by a model of the target; no GPU measured anything here"
MEASURED = "measured on a GPU"

_SPECIAL = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "×": r"$\times$", "–": "--"})

Rows = list[list[str]]


def markdown(comparison: Comparison) -> str:
    """Arms, their effects against the first one, tasks one by one."""
    parts = [f"{caption(comparison)}\n", _markdown(*arms(comparison))]
    if comparison.against:
        first = comparison.arms[0].name
        parts += [f"\nAgainst {first}. {note(comparison)}\n", _markdown(*effects(comparison))]
    parts += ["\nGeometric mean by task:\n", _markdown(*by_task(comparison))]
    return "\n".join(parts) + "\n"


def latex(comparison: Comparison) -> str:
    """The same three tables, as `table` environments for `\\usepackage{booktabs}`."""
    first = comparison.arms[0].name
    tables = [("arms", caption(comparison), arms(comparison))]
    if comparison.against:
        tables.append(("effects", f"Against {first}. {note(comparison)}", effects(comparison)))
    tables.append(("tasks", f"Geometric mean of the best speedup by task ({_kind(comparison)}).", by_task(comparison)))
    return "\n".join(_latex(f"tab:ablation-{name}", text, *table) for name, text, table in tables)


NOTE = (
    "Ratio: of the geometric means; area: its difference; 95% intervals by the hierarchical bootstrap over tasks and "
    "seeds; A12: chance that a run of the arm ends above one of the first (ties half), mean over the tasks; p: paired "
    "over tasks and seeds, by permutation / Wilcoxon, each adjusted for the number of arms (Holm)."
)


def note(comparison: Comparison) -> str:
    """What the table of effects shows."""
    if comparison.enough:
        return NOTE
    return (
        f"Ratio: of the geometric means; area: its difference; A12: chance that a run of the arm ends above one of the "
        f"first (ties half), mean over the tasks. {counted(comparison.pairs, 'pair')} of runs, fewer than {ENOUGH}: "
        f"too few for intervals and tests."
    )


def caption(comparison: Comparison) -> str:
    over, start = ("", "from the first candidate on")
    if comparison.gpu_seconds is not None:  # verifying and timing, see `evo.search.budget`
        over, start = " over GPU seconds (verifying and timing)", "from the start"
    return (
        f"Best speedup over the seed kernel after {in_words(comparison.budget, comparison.gpu_seconds)}, "
        f"{counted(len(comparison.tasks), 'task')}, {counted(comparison.pairs, 'run')} an arm; {_kind(comparison)}. "
        f"Success: a gain beyond its 95% interval; runs without one count as 1.0×. "
        f"Area: under the best-so-far curve{over} (log scale), 1 is the best of any arm {start}."
    )


def arms(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = ["arm", "success", f"geometric mean{mark}", f"mean of successes{mark}", f"area{mark}"]
    return head, [
        [
            arm.name,
            f"{arm.successes}/{arm.runs}",
            f"{arm.mean:.2f}×{_span(comparison, arm.mean_ci)}",
            "–" if arm.of_successes is None else f"{arm.of_successes:.2f}×",
            f"{arm.area:.3f}{_span(comparison, arm.area_ci, 3)}",
        ]
        for arm in comparison.arms
    ]


def effects(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = ["arm", f"ratio{mark}", "A12", "p", f"area{mark}", "A12 of areas", "p of areas"]
    return head, [_effect_row(comparison, against) for against in comparison.against]


def by_task(comparison: Comparison) -> tuple[list[str], Rows]:
    mark = " (est.)" if comparison.estimated else ""
    head = [f"task{mark}", *(arm.name for arm in comparison.arms)]
    rows = [[task, *(f"{arm.by_task[i]:.2f}×" for arm in comparison.arms)] for i, task in enumerate(comparison.tasks)]
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
    """An interval behind its number; "" if there are too few pairs for one."""
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
