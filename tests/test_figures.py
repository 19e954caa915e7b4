"""analysis.figures: what documents state is what the committed data give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from analysis.baselines import BaselineRow, save
from analysis.figures import checker, marks, suites, text
from analysis.figures.__main__ import main
from analysis.figures.baselines import beside
from analysis.figures.estimate import estimate
from analysis.figures.programs import programs
from analysis.figures.runner import runner
from evo.core.errors import ConfigError


def test_documents_state_what_the_data_give() -> None:
    """If this fails: `make figures`."""
    differences = [f"{path.name}: {line}" for path in marks.documents() for line in marks.differences(path)]
    assert not differences
    assert marks.count(marks.ROOT / "README.md") >= 35


def test_readme_states_no_share_and_no_speedup_without_data() -> None:
    assert not list(marks.unmarked(marks.ROOT / "README.md"))


def test_a_development_set_is_called_so() -> None:
    for name in ("README.md", "docs/suites.md", "docs/evidence.md", "runs/reference/tritonbench-g/README.md"):
        said = (marks.ROOT / name).read_text(encoding="utf-8")
        assert "development set" in said, name


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A repository of one document and one folder of data."""
    folder = marks.REFERENCE / "h200-structural"
    shutil.copytree(marks.ROOT / marks.REFERENCE, tmp_path / marks.REFERENCE, ignore=_others)
    assert (tmp_path / folder / "results.json").exists()
    (tmp_path / "README.md").write_text(
        "between <!-- figure: h200-structural.least -->1.30×<!-- end --> and 7×, `8×`:\n\n"
        "<!-- figure: h200-structural.spread -->\nold\n<!-- end -->\n\n```text\n9×\n```\n"
    )
    return tmp_path


def _others(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if Path(name).suffix not in ("", ".json", ".md")}


def test_a_figure_that_differs_is_named_and_written_again(copied: Path) -> None:
    document = copied / "README.md"
    first, second = marks.differences(document, copied)
    assert first == "h200-structural.least: the document says '1.30×', the data say '1.20×'"
    assert second.startswith("h200-structural.spread: the document says 'old', the data say '| task |")
    document.write_text(marks.rewritten(document, copied))
    assert not list(marks.differences(document, copied))
    said = document.read_text()
    assert "between <!-- figure: h200-structural.least -->1.20×<!-- end --> and 7×" in said
    assert "<!-- figure: h200-structural.spread -->\n| task |" in said and "```text\n9×" in said
    assert list(marks.unmarked(document)) == ["7×"]


def test_figures_move_with_their_data(copied: Path) -> None:
    path = copied / marks.REFERENCE / "h200-structural" / "results.json"
    results = json.loads(path.read_text())
    results["runs"][0]["speedup"] = 0.5
    path.write_text(json.dumps(results))
    assert "'0.50×'" in next(marks.differences(copied / "README.md", copied))


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("<!-- figure: h200-structural.most --><!-- end -->", "expected a figure of h200-structural"),
        ("<!-- figure: h100.most --><!-- end -->", "expected a folder with figures"),
        ("<!-- figure: h200-structural.least -->1.20×", "a mark without an end"),
    ],
)
def test_a_wrong_mark_is_an_error(copied: Path, mark: str, message: str) -> None:
    (copied / "README.md").write_text(mark)
    with pytest.raises(ConfigError, match=message):
        marks.rewritten(copied / "README.md", copied)


def test_the_command_checks_without_changing(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in marks.documents()}
    assert main(["--check"]) == 0 and "0 differ from the data" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in marks.documents()}


def test_shares_have_wilson_intervals() -> None:
    assert text.share(10, 11) == "91 % [62 %, 98 %]"  # Wilson: (0.6226, 0.9838)
    assert text.share(0, 10) == "0 % [0 %, 28 %]"


def test_variants_are_compared_at_equal_answers_where_both_have_so_many(tmp_path: Path) -> None:
    rows = [
        ("k", "evolve", "ok", 2.0), ("k", "evolve", "wrong", ""), ("k", "evolve", "ok", 8.0),
        ("k", "other", "ok", 4.0), ("k", "other", "ok", 0.5),
        ("l", "evolve", "ok", 0.9), ("l", "other", "rejected", ""),
    ]  # fmt: skip
    head = "kernel,variant,answer,operator,verdict,speedup,ci_low,ci_high,seed_us,us,attainable_us"
    lines = [f"{k},{v},1,mutate,{verdict},{speedup},,,10;4,5;2,1;" for k, v, verdict, speedup in rows]
    (tmp_path / "answers.csv").write_text("\n".join([head, *lines]) + "\n")
    figures = suites.tritonbench_claude(tmp_path)
    assert (figures["kernels"], figures["answers"]) == ("2", "7")
    assert figures["right"].startswith("71 %")
    after = [line.split(" | ") for line in figures["after"].splitlines()[2:]]
    # After one answer 2 and 1 (0.9 is slower than the seed) beside 4 and 1; l has no second ones.
    assert [(row[0], *row[1:3]) for row in after] == [("| 1", "other", "2"), ("| 2", "other", "1")]
    assert [row[3].split(" ")[0] for row in after] == ["1.41×", "2.00×"]
    assert [row[4].split(" ")[0] for row in after] == ["2.00×", "4.00×"]
    assert [row[5].split(" ")[0] for row in after] == ["0.71×", "0.50×"]
    assert figures["table"].splitlines()[2] == "| k | 10, 4 | 5, 2 | 20 %, ? | 8.00 (3) | 4.00 (2) |"


def test_a_kernel_without_a_right_answer_stands_in_the_table_too(tmp_path: Path) -> None:
    head = "kernel,variant,answer,operator,verdict,speedup,ci_low,ci_high,seed_us,us,attainable_us"
    (tmp_path / "answers.csv").write_text(f"{head}\nk,evolve,1,mutate,wrong,,,,,,\n")
    table = suites.tritonbench_claude(tmp_path)["table"]
    assert table.splitlines()[2] == "| k | ? | none is right | ? | 1.00 (1) |"


def test_kernels_of_programs_count_as_faster_if_their_interval_lies_above_1(tmp_path: Path) -> None:
    def result(name: str, reached: str, low: float) -> dict[str, Any]:
        gain = {"speedup": 4.0, "ci95": [low, 5.0], "improved": True, "attained": 0.5}
        found = {"program": name, "package": "p 1", "kernel": f"p.{name}", "reached": reached, "certificate": "passed"}
        return {**found, "new_runs": 15, "gain": gain if reached == "program" else None}

    results = [result("a", "program", 3.0), result("b", "program", 0.9), result("c", "nothing", 3.0)]
    (tmp_path / "published.jsonl").write_text("\n".join(map(json.dumps, results)))
    slow = {"speedup": 1.0, "ci95": [0.9, 1.1], "improved": False, "attained": 0.9}
    searches = [{"kernel": "p.a", "gain": results[0]["gain"]}, {"kernel": "p.b", "gain": slow}]
    answers = {"p.a": {"best": {**slow, "speedup": 8.0, "ci95": [7.0, 9.0], "improved": True}}, "p.b": {"best": None}}
    step = {"ratio": 1.1, "ci95": [1.0, 1.2]}
    comparisons = [
        {**step, "pairs": pairs, "sides": [{"deviation": worst}, {"deviation": 0.01}], "step_ms": step}
        for pairs, worst in ((6, 0.02), (8, 0.0))
    ]
    kernels = [{"kernel": f"p.{name}", "gpu_us": us} for name, us in (("a", 3000.0), ("b", 900.0), ("c", 100.0))]
    liger = {"table": kernels, "searches": searches, "answers": answers, "comparisons": comparisons}
    (tmp_path / "liger.json").write_text(json.dumps(liger))
    figures = programs(tmp_path)
    assert (figures["through"], figures["faster"], figures["deviation"]) == ("2 of 3", "1 of 3", "2.0 %")
    assert figures["mean"].startswith("2.00×")
    assert figures["published"].splitlines()[2] == "| p | `a` | 4.00 [3.00, 5.00] | 50 % | passed | 15 calls |"
    assert figures["liger"].splitlines()[2:] == [
        "| `a` | 3.0 | 75 % | 4.00 [3.00, 5.00] (50 % of attainable) | 8.00 [7.00, 9.00] (90 % of attainable) |",
        "| `b` | 0.9 | 22 % | nothing faster | nothing faster |",
        "| `c` | 0.1 | 2 % | not asked | not asked |",
    ]
    assert (figures["rules.pairs"], figures["answers.pairs"], figures["answers.step"]) == (
        "6",
        "8",
        "1.10 [1.00, 1.20]",
    )


def test_estimates_are_ranked_beside_measured_times_by_task(tmp_path: Path) -> None:
    rows = [f"rules,t,{i},{1 + i},{10 - i}" for i in range(9)] + ["rules,t,x,9.5,"]
    rows += [f"answers,u,{i},{2 + 0.01 * i},{i}" for i in range(8)] + ["answers,few,a,1,1"]
    (tmp_path / "ranks.csv").write_text("\n".join(["origin,task,candidate,speedup,estimate_us", *rows]))
    rows = [f"S,a,{i},{1 + 0.1 * i},{1 + i}" for i in range(8)] + [f"S,b,{i},{1 + i},{8 - i}" for i in range(8)]
    rows += [f"T,c,{i},{1 + i},1" for i in range(9)] + ["T,few,a,1,1"]
    (tmp_path / "suites.csv").write_text("\n".join(["suite,task,candidate,speedup,estimated_speedup", *rows]))
    figures = estimate(tmp_path)
    assert figures["suites"].splitlines()[2:] == [
        "| S | 2 | 16 | 0.00 (-1.00 to 1.00) |  |",
        "| T | 1 | 9 | 0.00 (0.00 to 0.00) |  |",
    ]
    assert (figures["suites.tasks"], figures["suites.candidates"]) == ("3", "26")
    assert figures["suites.mean"] == "0.00 (-1.00 to 1.00)"
    assert figures["ranks"].splitlines()[2:] == [
        "| t | rules | 9 | 9.0× | 1.00 | 4 |  |",
        "| u | answers | 8 | 1.0× | -1.00 | 8 | -1.00 |",
    ]
    assert (figures["ranks.candidates"], figures["ranks.refused"]) == ("19", "1")
    assert figures["ranks.rules"] == "1.00 (1.00 to 1.00)" and figures["ranks.answers"] == "-1.00 (-1.00 to -1.00)"


def test_times_beside_baselines_are_means_over_the_cases_of_a_task(tmp_path: Path) -> None:
    def row(task: str, case: str, kernel: str, us: float, name: str, ratio: float, error: str = "") -> BaselineRow:
        return BaselineRow(task, "h", case, 10.0, kernel, "", us, name, us * ratio, ratio, ratio, ratio, error)

    rows = [
        row("a", "one", "seed", 40.0, "eager", 1.0),
        row("a", "one", "best", 20.0, "eager", 2.0),
        row("a", "two", "best", 80.0, "eager", 8.0),
        row("a", "one", "best", 20.0, "torch.compile", 0.5),
        row("b", "one", "seed", 20.0, "eager", 1.0),
        row("b", "one", "best", 10.0, "eager", 1.0),
        row("b", "one", "best", 10.0, "torch.compile", 2.0),
        row("b", "one", "best", 10.0, "library", 3.0),
        row("a", "one", "best", 20.0, "library", 0.0, "no such kernel"),
    ]
    save(tmp_path / "times.json", rows, {"name": "X"}, {"evo": "1"})
    found = beside(tmp_path)
    assert (found["tasks"], found["seed-attained"], found["attained"]) == ("2", "38 %", "62 %")
    assert found["least-attained"] == "25 %" and found["over-eager"].startswith("2.00×")
    assert (found["faster-than-compile"], found["with-library"]) == ("1 of 2", "1")
    assert "| a | 25 % | 25 % | 4.00× | 0.50× | none |" in found["table"]
    assert "no such kernel" in found["cases"]


def test_searches_of_the_same_code_share_a_row_and_equal_kernels_have_one_a_size(tmp_path: Path) -> None:
    head = "code,screen_budget,task,seed,candidates,search_s,wall_s,ended,best,candidates_in_50_s,best_in_50_s"
    rows = [
        "old,4,t,0,60,140,150,False,6,20,5",
        "new,0,t,0,150,50,60,True,6.5,150,6.5",
        "new,0,t,1,150,40,60,True,7,150,7",
    ]
    (tmp_path / "searches.csv").write_text("\n".join([head, *rows]))
    head = "case,us,launches_per_sample,comparisons,counted,counted_and_at_least_5_percent,interval_excludes_1"
    row = "rows-64,1.93,32,600,3,0,88,1.0138,0.9849,0.9972,1.0086,28.9"
    (tmp_path / "same.csv").write_text(f"{head},noise_floor,least,median,greatest,pairs\n{row}\n")
    campaign = ("a,X,4,0,2,100,50.0,whole,", "b,X,4,0,2,100,20.0,whole,1.01")
    (tmp_path / "campaign.csv").write_text(
        "\n".join(["code,gpu,processes,seed,kernels,candidates,wall_s,ended,best_over_old", *campaign])
    )
    allocation = ("a,32,1.5,16,1.2", "b,32,1,50,1.005", "c,32,2,30,8")
    (tmp_path / "allocation.csv").write_text(
        "\n".join(["kernel,candidates_equal,best_equal,candidates_headroom,best_headroom", *allocation])
    )
    (tmp_path / "answers.csv").write_text(
        "code,kernel,estimates_an_answer,answers,judged,first_question_s,last_verdict_s\na,k,12,4,0,15.6,\n"
    )
    figures = runner(tmp_path)
    assert figures["searches"].splitlines()[2:] == [
        "| t | old | 4 | 1 | 20 | 5.00 | 60 | 140 | 6.00 |",
        "| t | new | 0 | 2 | 150 | 6.75 (6.50 to 7.00) | 150 | 45 (40 to 50) | 6.75 (6.50 to 7.00) |",
    ]
    assert figures["campaign"].splitlines()[2:] == [
        "| X | a | 4 | 0 | 2 | 100 | 50 | 2.00 | whole | 1 |",
        "| X | b | 4 | 0 | 2 | 100 | 20 | 5.00 | whole | 1.01 |",
    ]
    assert [line.split(" [")[0] for line in figures["allocation"].splitlines()[2:]] == [
        "| equal | 3 | 96 | 1.44×",
        "| headroom | 3 | 96 | 2.13×",
    ]
    assert figures["allocation.ratio"].startswith("1.48×") and figures["allocation.rest"].startswith("0.90×")
    assert [figures[f"allocation.{name}"] for name in ("better", "worse", "widest")] == ["1", "1", "c"]
    assert figures["answers"].splitlines()[2:] == ["| a | k | 12 | 0 of 4 | 15.6 | none |"]
    assert figures["same"].splitlines()[2:] == [
        "| 1.93 µs | 32 | 0.985 / 0.997 / 1.009 | 1.014 | 600 | 3 (0.5 %) | 0 |"
    ]


def test_a_wrong_kernel_counts_if_a_witness_and_the_evaluator_say_something_of_it(tmp_path: Path) -> None:
    head = "kind,id,group,task,kernel,operator,seen,class,inputs,verdict,stage,rule"
    rows = [
        "wrong,a,built-in,softmax,seed,mask-lost,wrong,cpu,normal,wrong,verify,ok",
        "wrong,b,built-in,softmax,seed,mask-lost,wrong,gpu,large,ok,done,ok",
        "wrong,c,built-in,softmax,seed,mask-lost,right,,,ok,done,",  # does the same
        "wrong,d,built-in,softmax,seed,stride-swapped,wrong,cpu,normal,compile_error,compile,",
        "wrong,e,built-in,softmax,seed,stride-swapped,wrong,cpu,normal,,,",  # not asked
        "right,f,built-in,softmax,seed,plain,right,,,ok,done,ok",
        "right,g,built-in,softmax,seed,plain,right,,,wrong,verify,ok",
        "right,h,built-in,softmax,seed,plain,invalid,,,ok,done,ok",
    ]
    (tmp_path / "gpu.csv").write_text("\n".join([head, *rows]) + "\n")
    (tmp_path / "cpu.csv").write_text("\n".join([head, rows[0].replace("wrong,a", "wrong,z")]) + "\n")
    found = checker.checker(tmp_path)
    assert found["gpu.refused"].startswith("1 of 2 [") and found["cpu.refused"].startswith("1 of 1 [")
    assert found["gpu.rule"].startswith("0 of 2 [")
    assert (found["gpu.right"], found["cpu.right"]) == ("1 of 2", "0 of 0")
    assert (found["wrong"], found["gpu.wrong"]) == ("3", "2")
    sizes = [[cell.split(" [")[0] for cell in line.split(" | ")[1:]] for line in found["refused"].splitlines()[2:]]
    assert sizes == [
        ["1 of 2", "1 of 1"],
        ["1 of 1", "1 of 1"],
        ["0 of 1", "none |"],
        ["none", "none |"],
        ["0 of 2", "0 of 1"],
    ]
    assert [line.split(" | ")[0] for line in found["operators"].splitlines()[2:]] == ["| mask-lost"]
    assert found["survivors"].splitlines()[2:] == ["| on a GPU | softmax | seed | mask-lost | large |"]
