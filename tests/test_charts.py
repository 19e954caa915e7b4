"""analysis.charts: axes, and what tells series apart."""

from __future__ import annotations

import math

import pytest

from analysis.charts import (
    COLOURS,
    CaseBar,
    LineageNode,
    Move,
    Series,
    Step,
    axis,
    best_so_far,
    case_speedups,
    dash,
    lineage,
    number,
    roofline,
)

SPANS = [(0.9, 1.1), (1.0, 68.77), (0.97, 3.1), (0.001, 250_000.0), (1.0, 1.0), (0.0, 33.0), (5.0, 5.0003)]


@pytest.mark.parametrize("log", [None, True, False])
@pytest.mark.parametrize("span", SPANS)
def test_axes_hold_their_values_and_have_some_round_ticks(span: tuple[float, float], log: bool | None) -> None:
    if log and span[0] == 0:
        pytest.skip("a logarithmic axis has no zero")
    made = axis(span, 300.0, 10.0, log=log)
    assert all(10 <= made(value) <= 300 for value in span)
    ticks = made.ticks()
    assert 1 <= len(ticks) <= 11
    assert ticks == sorted(set(ticks))
    assert all(10 <= made(tick) <= 300 for tick in ticks)


def test_wide_spans_are_logarithmic() -> None:
    assert axis([1.0, 68.0], 0, 1).log
    assert not axis([1.0, 1.3], 0, 1).log
    assert not axis([0.0, 68.0], 0, 1).log
    made = axis([1.0, 100.0], 0.0, 1.0)
    assert math.isclose(made(10.0), 0.5)


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0, 1.5, 10, 0.25, 12_000, 3e6, 0.0002)] == [
        "0",
        "1.5",
        "10",
        "0.25",
        "12,000",
        "3e6",
        "2e-4",
    ]


def test_28_series_differ_in_colour_or_dashes() -> None:
    assert len({(place % COLOURS, dash(place)) for place in range(28)}) == 28


def test_a_band_spans_the_interval_and_a_line_the_speedup() -> None:
    steps = [Step(0, 1.0, 1.0, 1.0), Step(5, 2.0, 1.5, 2.5, "<b>")]
    svg = str(best_so_far([Series("<i>", steps, 10, "estimated")], "trials"))
    assert "&lt;b&gt;" in svg and "&lt;i&gt;" in svg and "<b>" not in svg
    assert "(estimated)" in svg
    line = svg.partition('<polyline class="line c0" stroke-dasharray="" points="')[2].partition('"')[0].split()
    band = svg.partition('points="')[2].partition('"')[0].split()
    assert len(line) == 4
    assert len(band) == 8
    assert len({point.split(",")[0] for point in line}) == 3


def test_every_chart_says_in_words_what_it_shows() -> None:
    cases = str(case_speedups([CaseBar("a<b", 2.0, 1.9, 2.1)], "measured"))
    assert 'aria-label="Speedup by case (measured): a&lt;b 2.00×"' in cases
    roof = str(roofline([Move("a", 2.0, 1e12, 3e12), Move("b", 2.0, 1e12, 4e12)], 4e12, 8e14, "estimated"))
    assert 'aria-label="Roofline (estimated): a from 1 to 3 TFLOP/s; b from 1 to 4 TFLOP/s"' in roof
    assert len({part.partition('"')[0] for part in roof.split('class="hollow c')}) == 3


def test_parents_stand_above_their_children_and_links_are_labelled() -> None:
    nodes = {
        0: LineageNode(0, (), "seed", "1.00×", True, "t0"),
        1: LineageNode(1, (0,), "edit", "1.10×", False),
        2: LineageNode(2, (0, 1), "<mix>", "1.20×", True, "t2"),
    }
    svg = str(lineage(nodes))
    boxes = [part.partition('y="')[2].partition('"')[0] for part in svg.split("<rect")[1:]]
    assert sorted(map(float, boxes)) == list(map(float, boxes))
    assert len(set(boxes)) == 3
    assert svg.count('class="edge') == 3
    assert svg.count('class="edge other"') == 1
    assert '<a href="#t2" aria-label="trial 2, &lt;mix&gt;, 1.20×: to its diff">' in svg
