"""analysis.suite: the figures of a suite, by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.outcomes import Outcome
from analysis.suite import Kernel, code_lines, markdown, write_parquet


def outcome(name: str, best: float, *, estimated: bool = False, right: int = 3, wrong: int = 1) -> Outcome:
    verdicts = {"ok": right + 1, "wrong": wrong}  # the seed is ok too
    interval = (best * 0.99, best * 1.01) if best > 1 else (1.0, 1.0)
    return Outcome("full", name, 0, 4, (1.0, best), interval, estimated, verdicts, 2.0)


KERNELS = [
    Kernel("a", 10, outcome=outcome("a", 1.0)),
    Kernel("b", 20, outcome=outcome("b", 1.04)),
    Kernel("c", 30, outcome=outcome("c", 1.5)),
    Kernel("d", 40, outcome=outcome("d", 4.0)),
    Kernel("e", 50, reason="record: unsupported: a | b\nmore"),
    Kernel("f", 60),
]


def value(text: str, figure: str) -> str:
    return next(line.split(" | ")[1].removesuffix(" |") for line in text.splitlines() if line.startswith(f"| {figure}"))


def test_failures_count_as_1_and_both_means_are_there() -> None:
    text = markdown(KERNELS)
    assert "6 files: 4 searched, 1 not runnable here, 1 not finished" in text
    assert "measured" in text
    assert value(text, "success ≥ 1.05×").startswith("2/4 = 50% [15%, 85%]")  # Wilson, by the formula
    assert [value(text, f"fast_{p}").split(" ")[0] for p in ("1 ", "1.2", "2")] == ["3/4", "2/4", "1/4"]
    assert value(text, "geometric mean").startswith("1.58×")  # (1 * 1.04 * 1.5 * 4) ** 0.25
    assert value(text, "mean of successes") == "2.75×"
    assert value(text, "candidates that are right").startswith("12/16")
    assert value(text, "candidates a kernel") == "4.0"
    assert "| e | record: unsupported: a \\| b more |" in text


def test_quarters_are_by_length_and_kernels_by_speed() -> None:
    text = markdown(KERNELS)
    assert "| Q1 | 10 to 10 | 1 | 0/1" in text
    assert "| Q4 | 40 to 40 | 1 | 1/1" in text
    rows = [line for line in text.splitlines() if line.startswith(("| a |", "| b |", "| c |", "| d |"))]
    assert [row[2] for row in rows] == ["d", "c", "b", "a"]
    assert "no gain" in rows[-1]


def test_estimates_are_called_estimates() -> None:
    assert "estimated by a model" in markdown([Kernel("a", 1, outcome=outcome("a", 2.0, estimated=True))])


def test_without_a_search_there_is_nothing_to_sum_up() -> None:
    with pytest.raises(ValueError, match="no kernel was searched"):
        markdown(KERNELS[4:])


def test_the_figures_of_each_kernel_are_in_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "kernels.parquet", KERNELS)
    rows = {row["kernel"]: row for row in pq.read_table(tmp_path / "kernels.parquet").to_pylist()}
    assert [rows[k]["best"] for k in "abcdef"] == [1.0, 1.04, 1.5, 4.0, None, None]
    assert (rows["d"]["candidates"], rows["d"]["right"], rows["d"]["seconds"]) == (4, 3, 2.0)
    assert rows["e"]["reason"].startswith("record")


def test_lines_of_code_leave_out_comments_and_blank_ones() -> None:
    assert code_lines("a = 1\n\n# b\n  # c\nd = 2  # e\n") == 2
