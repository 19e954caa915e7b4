"""analysis.suite: the figures of a suite, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.suite import SuiteBaseline, SuiteKernel, code_lines, markdown, summary
from tests.suite_support import KERNELS, TIMED, outcome


def value(text: str, figure: str) -> str:
    return next(line.split(" | ")[1].removesuffix(" |") for line in text.splitlines() if line.startswith(f"| {figure}"))


def test_failures_count_as_1_and_both_means_are_there() -> None:
    text = markdown(KERNELS)
    assert "6 files: 4 searched, 1 not runnable here, 1 not finished" in text
    assert "measured" in text
    assert value(text, "success ≥ 1.05×").startswith("2/4 = 50% [15%, 85%]")  # Wilson, by the formula
    assert value(text, "success, certified").startswith("1/4")
    assert value(text, "compiled").startswith("4/4") and value(text, "fast_0, correct").startswith("4/4")
    assert value(text, "median") == "1.27×"  # between 1.04 and 1.5
    assert [value(text, f"fast_{p}").split(" ")[0] for p in ("1 ", "1.2", "2")] == ["3/4", "2/4", "1/4"]
    assert value(text, "geometric mean").startswith("1.58×")  # (1 * 1.04 * 1.5 * 4) ** 0.25
    assert value(text, "mean of successes") == "2.75× [1.50, 4.00]"  # of two, the bootstrap draws these alone too
    assert value(text, "candidates that are right").startswith("12/16")
    assert value(text, "candidates that compile and run").startswith("16/16")  # the wrong ones too
    assert value(text, "candidates a kernel") == "4.0"
    assert [value(text, name) for name in ("seconds of evaluation", "of these of a GPU")] == ["2.0", "0.5"]
    assert "| e | record: unsupported: a \\| b more |" in text


def test_quarters_are_by_length_and_kernels_by_speed() -> None:
    text = markdown(KERNELS)
    assert "| Q1 | 10 to 10 | 1 | 0/1" in text
    assert "| Q4 | 40 to 40 | 1 | 1/1" in text
    rows = [line for line in text.splitlines() if line.startswith(("| a |", "| b |", "| c |", "| d |"))]
    assert [row[2] for row in rows] == ["d", "c", "b", "a"]
    assert "no gain" in rows[-1]
    assert rows[0] == "| d | 40 | 4.00× | [3.96, 4.04] | 3.50× | 4 |" and " |  | 4 |" in rows[1]


def test_more_candidates_find_more() -> None:
    rows = [
        line.split(" | ") for line in markdown(KERNELS).splitlines() if line.startswith(("| 1 |", "| 2 |", "| 4 |"))
    ]
    assert [row[1].split(" ")[0] for row in rows] == ["0/4", "2/4", "2/4"]  # c has 1.25x after two
    assert [row[2] for row in rows] == ["1.00×", "1.34×", "1.58×"]  # (1 * 1.02 * 1.25 * 2.5) ** 0.25
    assert [row[3] for row in rows] == ["75%", "100%", "100%"]  # three of four are right
    # c and d have two successes of four each: by two candidates 1 - 1/6, of the others never.
    assert [row[4].removesuffix(" |") for row in rows] == ["25%", "42%", "50%"]


def test_shares_of_the_attainable_speed_are_shown_if_they_are_known() -> None:
    assert "attainable" not in markdown(KERNELS)
    known = [replace(k, outcome=replace(k.outcome, attained=0.5)) for k in KERNELS[:3] if k.outcome]
    text = markdown([replace(known[0], outcome=replace(known[0].outcome, attained=0.02)), *known[1:], *KERNELS[3:]])
    assert value(text, "share of the attainable speed") == "17% of 3 kernels"  # (0.02 * 0.5 * 0.5) ** (1 / 3)
    rows = {line[2]: line.split(" | ")[-2] for line in text.splitlines() if line[:5] in ("| a |", "| c |", "| d |")}
    assert rows == {"a": "2%", "c": "50%", "d": "unknown"}


def test_estimates_are_called_estimates() -> None:
    assert "estimated by a model" in markdown([SuiteKernel("a", 1, outcome=outcome("a", 2.0, estimated=True))])


def test_without_a_search_there_is_nothing_to_sum_up() -> None:
    with pytest.raises(ValueError, match="no kernel was searched"):
        markdown(KERNELS[4:])


def test_lines_of_code_leave_out_comments_and_blank_ones() -> None:
    assert code_lines("a = 1\n\n# b\n  # c\nd = 2  # e\n") == 2


def test_pytorch_is_compared_with_the_best_by_the_product_of_both_ratios() -> None:
    assert TIMED[0].over("eager") == pytest.approx(3.0)
    assert TIMED[0].over("torch.compile") == pytest.approx(1.05)
    assert TIMED[1].over("torch.compile") is None and TIMED[0].over("other") is None
    text = markdown(TIMED, with_pytorch=True)
    rows = [line for line in text.splitlines() if line.startswith("| fast_")]
    assert [line.split(" | ")[1].split(" ")[0] for line in rows[4:]] == ["1/2", "1/2", "1/2"]  # over eager
    assert [line.split(" | ")[2].split(" ")[0] for line in rows[4:]] == ["1/1", "0/1", "0/1"]
    assert "| b | 60.0 | 30.0 | No | 0.50× [0.49, 0.51] | none | 0.50× | none | own |" in text


def test_seed_kernels_alone_are_compared_where_nothing_was_searched() -> None:
    text = markdown(
        [SuiteKernel("a", 10, baselines=TIMED[0].baselines, note="reduced to n=4"), TIMED[2]], with_pytorch=True
    )
    assert "2 files: 0 searched, 1 not runnable here, 1 not searched" in text
    assert "of the seed kernel: nothing was searched" in text
    assert "| a | 50.0 | 100.0 | 35.0 | 2.00× [1.98, 2.02] | 0.70× [0.69, 0.71] | reduced to n=4 |" in text


def test_without_a_gpu_pytorch_has_no_times() -> None:
    assert "PyTorch is timed on a GPU alone" in markdown(KERNELS, with_pytorch=True)
    assert "PyTorch" not in markdown(KERNELS)


def test_a_tie_with_pytorch_is_not_faster() -> None:
    near = SuiteBaseline(101.0, 100.0, 1.01, (0.99, 1.03))
    apart = SuiteBaseline(101.0, 100.0, 1.01, (1.005, 1.015))
    kernels = [SuiteKernel("a", 1, baselines={"eager": near}), SuiteKernel("b", 1, baselines={"eager": apart})]
    assert [k.ties("eager") for k in kernels] == [True, False]
    text = markdown(kernels, with_pytorch=True)
    assert "| fast_1 | 1/2" in text and "| tie | 1/2" in text and "| median | 1.01× |" in text
    # Errors of both ratios add up in quadrature: 1 % of the search (`outcome`) and 0.5 % of the baseline.
    searched = replace(kernels[1], outcome=outcome("b", 1.001))
    assert searched.over("eager") == pytest.approx(1.001 * 1.01) and searched.ties("eager")


def test_a_search_that_is_not_finished_is_not_faster_than_pytorch() -> None:
    faster = {"eager": SuiteBaseline(200.0, 100.0, 2.0, (1.9, 2.1))}
    stopped = SuiteKernel("a", 1, baselines=faster, so_far="2 of 6 candidates")
    searched = SuiteKernel("b", 1, baselines=faster, outcome=outcome("b", 1.5))
    text = markdown([stopped, searched], with_pytorch=True)
    assert "| fast_1 | 1/1" in text and "| a | 100.0 | 200.0 |" in text
    assert "| fast_1 | 1/1" in markdown([stopped], with_pytorch=True)  # the seed kernel then


def test_variants_and_seeds_are_summed_up_apart() -> None:
    runs = [replace(k, variant=v, seed=s) for v in ("evolve", "random") for s in (0, 1) for k in KERNELS[:2]]
    text = summary(runs, suite=False)
    assert text.count("4 kernels: 4 searched") == 2 and "Speedups over the seed kernels, measured" in text
    assert text.index("# evolve") < text.index("| b, seed 1 | 20 |") < text.index("# random")
    assert summary(KERNELS) == markdown(KERNELS)
    stopped = SuiteKernel("a", 10, so_far="2 of 6 candidates")
    assert "| a | 2 of 6 candidates |" in summary([stopped])
