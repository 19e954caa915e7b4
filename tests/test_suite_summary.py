"""analysis.suite: the figures of a suite, by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.outcomes import Outcome
from analysis.suite import Baseline, Kernel, code_lines, markdown, write_parquet


def outcome(name: str, best: float, *, estimated: bool = False, right: int = 3, wrong: int = 1) -> Outcome:
    verdicts = {"ok": right + 1, "wrong": wrong}  # the seed is ok too
    interval = (best * 0.99, best * 1.01) if best > 1 else (1.0, 1.0)
    curve = (1.0, (1 + best) / 2, best, best)
    gains = sum(b >= 1.05 for b in curve[1:3])
    return Outcome(
        "full",
        name,
        0,
        4,
        curve,
        interval,
        estimated,
        verdicts,
        2.0,
        gpu_spent=0.5,
        successes=gains,
        certified=best - 0.5 if best > 2 else 1.0,
    )


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
    assert value(text, "success, certified").startswith("1/4")
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


def test_estimates_are_called_estimates() -> None:
    assert "estimated by a model" in markdown([Kernel("a", 1, outcome=outcome("a", 2.0, estimated=True))])


def test_without_a_search_there_is_nothing_to_sum_up() -> None:
    with pytest.raises(ValueError, match="no kernel was searched"):
        markdown(KERNELS[4:])


def test_the_figures_of_each_kernel_are_in_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "kernels.parquet", KERNELS)
    rows = {row["kernel"]: row for row in pq.read_table(tmp_path / "kernels.parquet").to_pylist()}
    assert [rows[k]["best"] for k in "abcdef"] == [1.0, 1.04, 1.5, 4.0, None, None]
    d = rows["d"]
    assert [d[name] for name in ("candidates", "valid", "right", "successes")] == [4, 4, 3, 2]
    assert (d["seconds"], d["gpu_seconds"], d["curve"]) == (2.0, 0.5, [1.0, 2.5, 4.0, 4.0])
    assert (d["certified"], rows["c"]["certified"]) == (3.5, 1.0)
    assert rows["e"]["reason"].startswith("record")


def test_lines_of_code_leave_out_comments_and_blank_ones() -> None:
    assert code_lines("a = 1\n\n# b\n  # c\nd = 2  # e\n") == 2


def beside(us: float, seed_us: float, error: str = "") -> Baseline:
    ratio = us / seed_us if not error else 0.0
    return Baseline(us, seed_us, ratio, (ratio * 0.99, ratio * 1.01), error)


TIMED = [
    Kernel("a", 10, outcome=outcome("a", 1.5), baselines={"eager": beside(100, 50), "torch.compile": beside(35, 50)}),
    Kernel(
        "b", 10, outcome=outcome("b", 1.0), baselines={"eager": beside(30, 60), "torch.compile": beside(0, 0, "No")}
    ),
    Kernel("c", 10, reason="no seed kernel"),
]


def test_pytorch_is_compared_with_the_best_by_the_product_of_both_ratios() -> None:
    assert TIMED[0].over("eager") == pytest.approx(3.0)
    assert TIMED[0].over("torch.compile") == pytest.approx(1.05)
    assert TIMED[1].over("torch.compile") is None and TIMED[0].over("other") is None
    text = markdown(TIMED, with_pytorch=True)
    rows = [line for line in text.splitlines() if line.startswith("| fast_")]
    assert [line.split(" | ")[1].split(" ")[0] for line in rows[3:]] == ["1/2", "1/2", "1/2"]  # over eager
    assert [line.split(" | ")[2].split(" ")[0] for line in rows[3:]] == ["1/1", "0/1", "0/1"]
    assert "| b | 60.0 | 30.0 | No | 0.50× [0.49, 0.51] | none | 0.50× | none | own |" in text


def test_seed_kernels_alone_are_compared_where_nothing_was_searched() -> None:
    text = markdown([Kernel("a", 10, baselines=TIMED[0].baselines, note="reduced to n=4"), TIMED[2]], with_pytorch=True)
    assert "2 files: 0 searched, 1 not runnable here, 1 not searched" in text
    assert "of the seed kernel: nothing was searched" in text
    assert "| a | 50.0 | 100.0 | 35.0 | 2.00× [1.98, 2.02] | 0.70× [0.69, 0.71] | reduced to n=4 |" in text


def test_without_a_gpu_pytorch_has_no_times() -> None:
    assert "PyTorch is timed on a GPU alone" in markdown(KERNELS, with_pytorch=True)
    assert "PyTorch" not in markdown(KERNELS)


def test_baselines_are_in_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "kernels.parquet", TIMED)
    rows = pq.read_table(tmp_path / "kernels.parquet").to_pylist()
    assert [b["name"] for b in rows[0]["baselines"]] == ["eager", "torch.compile"]
    assert rows[0]["baselines"][0]["over"] == pytest.approx(3.0)
    assert rows[1]["baselines"][1]["error"] == "No" and rows[1]["baselines"][1]["us"] is None
    assert rows[2]["baselines"] == [] and rows[2]["reason"] == "no seed kernel"
