"""analysis.comparison and analysis.campaign_report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis import campaign_report
from analysis.comparison import compare
from analysis.outcomes import Outcome
from tests.ablation_support import campaign, outcome

VARIANTS = ("full", "worse", "same")
OUTCOMES = campaign({"full": 1.0, "worse": 0.7, "same": 1.0})


def test_variants_are_summed_up_over_tasks_then_seeds() -> None:
    found = [
        outcome("a", "x", 0, [1.0, 4.0]),
        outcome("a", "x", 1, [1.0, 1.0]),
        outcome("a", "y", 0, [2.0, 8.0]),
        outcome("b", "x", 0, [1.0, 1.0]),
        outcome("b", "x", 1, [1.0, 1.0]),
        outcome("b", "y", 0, [1.0, 1.0]),
    ]
    comparison = compare(found, ("a", "b"))
    a, b = comparison.variants
    assert (a.runs, a.successes, b.successes) == (3, 2, 0)
    assert a.by_task == pytest.approx((2.0, 8.0)) and a.mean == pytest.approx(4.0)  # failures as 1.0
    assert a.of_successes == pytest.approx(6.0) and b.of_successes is None
    # Area: halves of log 4 / log 4 and 0 on x; log 2 and log 8 over log 8, halved, on y.
    assert a.area == pytest.approx((0.25 + (1 / 3 + 1) / 2) / 2)
    assert (b.area, b.mean) == (0.0, 1.0)
    (against,) = comparison.against
    assert against.best.size == pytest.approx(1 / 4) and against.best.a12 == pytest.approx((0.25 + 0.0) / 2)
    assert against.best.p_flips == pytest.approx(0.5)  # both tasks differ, one way: 2 of 4 sign patterns
    assert (comparison.tasks, comparison.seeds, comparison.budget) == (("x", "y"), (2, 1), 2)


def test_a_worse_variant_is_found_and_the_same_one_is_not() -> None:
    worse, same = compare(OUTCOMES, VARIANTS).against
    assert worse.best.size == pytest.approx(0.7, rel=0.05) and worse.best.ci[1] < 0.8
    assert worse.best.p_flips == worse.best.p_wilcoxon == 0.25 and worse.best.a12 < 0.1  # all of four tasks, twice
    assert worse.area.size < 0 and worse.area.p_flips == 0.25
    assert same.best.ci[0] < 1 < same.best.ci[1] and same.best.p_flips > 0.05 and same.best.p_wilcoxon > 0.05


def test_tests_are_of_tasks_however_many_seeds_they_have() -> None:
    """One task alone is tested over its seeds; of several each counts once."""
    one = [o for o in OUTCOMES if o.task == "task-1"]
    assert compare(one, ("full", "worse")).against[0].best.p_flips == pytest.approx(2 / 2**5)
    text = campaign_report.markdown(compare(one, ("full", "worse")))
    assert "of the seeds of the one task" in text
    assert compare(OUTCOMES, ("full", "worse")).against[0].best.p_flips == pytest.approx(2 / 2**4)
    assert "of the means of the 4 tasks (at least 0.12 unadjusted)" in campaign_report.markdown(
        compare(OUTCOMES, VARIANTS)
    )


def test_seeds_that_a_variant_lacks_are_left_out_for_all() -> None:
    some = [o for o in OUTCOMES if (o.variant, o.task, o.seed) not in {("worse", "task-1", 2), ("same", "task-3", 0)}]
    comparison = compare(some, VARIANTS)
    assert comparison.seeds == (5, 4, 5, 4)
    assert [variant.runs for variant in comparison.variants] == [18, 18, 18]
    with pytest.raises(ValueError, match="no task and seed"):
        compare([o for o in OUTCOMES if o.variant != "same"], VARIANTS)


def test_tables_say_what_they_hold() -> None:
    comparison = compare(OUTCOMES, VARIANTS)
    text = campaign_report.markdown(comparison)
    assert (
        "after 4 candidates, 4 tasks, 20 runs a variant; measured on a GPU" in text and "est" not in text.split("\n")[2]
    )
    rows = [line for line in text.split("\n") if line.startswith("| worse |")]
    assert len(rows) == 2 and "0.250 / 0.250" in rows[1] and "(large)" in rows[1]
    estimated = campaign_report.markdown(
        compare([outcome(*key, [2.0], estimated=True) for key in KEYS], ("full", "same"))
    )
    heads = [line for line in estimated.split("\n") if "---" not in line and line.startswith(("| variant", "| task"))]
    assert len(heads) == 3 and all("(est.)" in head for head in heads)
    assert "no GPU measured anything" in estimated


def test_few_pairs_give_no_intervals_no_tests_and_no_words() -> None:
    few = [o for o in OUTCOMES if o.task == "task-1" and o.seed < 4]
    comparison = compare(few, VARIANTS)
    assert comparison.pairs == 4 and not comparison.enough
    for text in (campaign_report.markdown(comparison), campaign_report.latex(comparison)):
        assert "4 pairs of runs, fewer than 5: too few for intervals and tests" in text
        assert not any(word in text for word in ("[", "large", "medium", "small", "negligible", "Wilcoxon", "0.125"))
    rows = [line for line in campaign_report.markdown(comparison).split("\n") if line.startswith("| worse |")]
    assert len(rows) == 2 and rows[1].count("| – |") == 2
    (panel,) = campaign_report._curves(comparison, few).axes[:1]
    assert not panel.collections and not campaign_report._effects_figure(comparison).axes[0].collections
    enough = compare([o for o in OUTCOMES if o.task == "task-1"], VARIANTS)
    assert enough.enough and "[" in campaign_report.markdown(enough)


KEYS = [(variant, "layer_norm", seed) for variant in ("full", "same") for seed in range(2)]


def test_latex_is_balanced_and_escaped() -> None:
    comparison = compare([outcome(*key, [2.0], estimated=True) for key in KEYS], ("full", "same"))
    text = campaign_report.latex(comparison)
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 3
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 3
    assert r"layer\_norm" in text and r"95\%" in text and "×" not in text and "–" not in text
    widths = {line.count("&") for line in text.split("\n") if line.endswith(r"\\")}
    assert widths == {5, 6, 2}


def test_figures_are_files_that_are_the_same_each_time(tmp_path: Path) -> None:
    comparison = compare(OUTCOMES, VARIANTS)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths = campaign_report.draw(tmp_path / folder, comparison, OUTCOMES)
        assert [p.name for p in paths] == ["curves.pdf", "curves.png", "effects.pdf", "effects.png"]
    for path in (tmp_path / "one").iterdir():
        content = path.read_bytes()
        assert content == (tmp_path / "two" / path.name).read_bytes()
        assert content.startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")


def test_at_equal_gpu_seconds_areas_and_curves_are_over_them(tmp_path: Path) -> None:
    def over(variant: str, seed: int, at: list[float]) -> Outcome:
        return outcome(variant, "x", seed, [1.0, 2.0, 4.0], budget=50, gpu_seconds=8.0, at=tuple(at))

    found = [
        over("early", 0, [0, 1, 2]),
        over("early", 1, [0, 3, 4]),
        over("late", 0, [0, 6, 7]),
        over("late", 1, [0, 4, 8]),
    ]
    comparison = compare(found, ("early", "late"))
    early, late = comparison.variants
    assert early.area == pytest.approx(((1 / 2 + 6) / 8 + (1 / 2 + 4) / 8) / 2)
    assert late.area == pytest.approx(((1 / 2 + 1) / 8 + (4 / 2) / 8) / 2)
    assert early.mean == late.mean == pytest.approx(4.0)
    assert "after 8 GPU seconds (50 candidates at most)" in campaign_report.markdown(comparison)
    x, logs = campaign_report._sampled([o for o in found if o.variant == "early"])
    assert list(x) == [0, 1, 2, 3, 4, 8]
    assert np.exp(logs) == pytest.approx(np.array([[1, 2, 4, 4, 4, 4], [1, 1, 1, 2, 4, 4]]))
    assert (tmp_path / "curves.png") in campaign_report.draw(tmp_path, comparison, found)


def test_the_geometric_mean_of_the_seeds_is_that_of_scipy() -> None:
    from scipy.stats import gmean

    comparison = compare(OUTCOMES, VARIANTS)
    speedups = [o.best for o in OUTCOMES if o.variant == "full"]
    assert math.isclose(comparison.variants[0].mean, float(gmean(speedups)))  # equally many seeds a task
