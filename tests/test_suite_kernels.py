"""analysis.suite_kernels, and `evo suite summary`: campaigns over a suite summed up from their Parquet alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.suite import SuiteKernel, markdown
from analysis.suite_kernels import FILE, merged, read_kernels, write_kernels
from evo.cli.main import main
from evo.core.errors import StoreError
from tests.suite_support import KERNELS, TIMED, outcome

REFERENCE = Path(__file__).parent.parent / "runs" / "reference" / "tritonbench-g"
OLD = REFERENCE.parent / "kernelbench-level1"  # written before four of the columns existed
ADDED = ["certified", "gpu_seconds", "successes", "valid"]


def test_the_figures_of_each_kernel_are_in_parquet(tmp_path: Path) -> None:
    write_kernels(tmp_path / FILE, KERNELS)
    rows = {row["kernel"]: row for row in pq.read_table(tmp_path / FILE).to_pylist()}
    assert [rows[k]["best"] for k in "abcdef"] == [1.0, 1.04, 1.5, 4.0, None, None]
    d = rows["d"]
    assert [d[name] for name in ("candidates", "valid", "right", "successes")] == [4, 4, 3, 2]
    assert (d["seconds"], d["gpu_seconds"], d["curve"]) == (2.0, 0.5, [1.0, 2.5, 4.0, 4.0])
    assert (d["certified"], rows["c"]["certified"]) == (3.5, 1.0)
    assert rows["e"]["reason"].startswith("record")


def test_baselines_are_in_parquet(tmp_path: Path) -> None:
    write_kernels(tmp_path / FILE, TIMED)
    rows = pq.read_table(tmp_path / FILE).to_pylist()
    assert [b["name"] for b in rows[0]["baselines"]] == ["eager", "torch.compile"]
    assert rows[0]["baselines"][0]["over"] == pytest.approx(3.0)
    assert rows[1]["baselines"][1]["error"] == "No" and rows[1]["baselines"][1]["us"] is None
    assert rows[2]["baselines"] == [] and rows[2]["reason"] == "no seed kernel"


@pytest.mark.parametrize("kernels", [KERNELS, TIMED], ids=["searched", "timed"])
def test_what_is_read_gives_the_same_summary(tmp_path: Path, kernels: Sequence[SuiteKernel]) -> None:
    write_kernels(tmp_path / FILE, kernels)
    again = read_kernels(tmp_path / FILE)
    assert markdown(again) == markdown(kernels)
    write_kernels(tmp_path / "again.parquet", again)
    assert pq.read_table(tmp_path / "again.parquet").equals(pq.read_table(tmp_path / FILE))


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"expected the kernels\.parquet .* got no file; .* its command again"):
        read_kernels(tmp_path / FILE)
    (tmp_path / FILE).write_text("kernel,lines\n")
    with pytest.raises(StoreError, match=r"expected the kernels\.parquet"):
        read_kernels(tmp_path / FILE)
    pq.write_table(pa.table({"kernel": ["a"], "lines": [1]}), tmp_path / FILE)
    with pytest.raises(StoreError, match="got none called baselines, best"):
        read_kernels(tmp_path / FILE)


def test_the_first_that_searched_a_file_counts() -> None:
    refused, faster = SuiteKernel("a", 10, reason="record: no"), SuiteKernel("a", 10, outcome=outcome("a", 2.0))
    slower, timed = SuiteKernel("a", 10, outcome=outcome("a", 1.5)), SuiteKernel("a", 10, baselines=TIMED[0].baselines)
    unknown = SuiteKernel("a", 10)
    assert merged([[unknown], [refused], [timed], [slower], [faster]]) == [slower]
    assert merged([[faster], [slower]]) == [faster]
    assert merged([[unknown], [refused], [replace(refused, reason="later")]]) == [refused]
    assert merged([[timed], [refused]]) == [timed]
    assert merged([KERNELS[:2], KERNELS[1:]]) == KERNELS


def campaign(folder: Path, kernels: Sequence[SuiteKernel], suite: str = "tritonbench") -> str:
    folder.mkdir()
    (folder / "suite.json").write_text(json.dumps({"suite": suite}))
    write_kernels(folder / FILE, kernels)
    return str(folder)


def test_the_command_prints_the_summary_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = campaign(tmp_path / "first", [*KERNELS[:2], SuiteKernel("c", 30), *KERNELS[3:]])
    later = campaign(tmp_path / "later", [SuiteKernel("b", 20, outcome=outcome("b", 3.0)), KERNELS[2]])
    assert main(["suite", "summary", first, later]) == 0
    assert capsys.readouterr().out == markdown(KERNELS)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            lambda folder: campaign(folder, TIMED, "kernelbench"),
            "expected campaigns over one suite, got tritonbench in",
        ),
        (lambda folder: campaign(folder, [SuiteKernel("g", 1, outcome=outcome("g", 2.0, estimated=True))]), "got both"),
        (lambda folder: str(folder), "expected a folder of evo bench, which has a suite.json"),
    ],
    ids=["another suite", "estimated", "no campaign"],
)
def test_what_cannot_be_summed_up_is_misuse(tmp_path, capsys, second, message) -> None:
    first = campaign(tmp_path / "first", KERNELS)
    assert main(["suite", "summary", first, second(tmp_path / "second")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[1, 2]", "7", "{}", "{"])
def test_a_damaged_suite_json_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    folder = campaign(tmp_path / "first", KERNELS)
    (tmp_path / "first" / "suite.json").write_text(text)
    assert main(["suite", "summary", folder]) == 2
    assert "suite.json is damaged: expected the suite as evo bench wrote it" in capsys.readouterr().err


def test_nothing_searched_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "summary", campaign(tmp_path / "none", KERNELS[4:])]) == 2
    assert "nothing to sum up: no kernel was searched" in capsys.readouterr().err


def test_committed_figures_give_the_committed_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [REFERENCE, REFERENCE / "later", REFERENCE / "attention"]
    for folder in parts:
        assert main(["suite", "summary", str(folder)]) == 0
        assert capsys.readouterr().out == (folder / "summary.md").read_text()
    assert main(["suite", "summary", *map(str, parts)]) == 0
    assert capsys.readouterr().out == (REFERENCE / "all.md").read_text()


def test_a_committed_file_of_an_earlier_version_gives_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert not {*ADDED} & {*pq.read_schema(OLD / FILE).names}
    assert main(["suite", "summary", str(OLD)]) == 0
    assert capsys.readouterr().out == (OLD / "summary.md").read_text()


def test_figures_that_an_earlier_version_did_not_store_are_unknown(tmp_path: Path) -> None:
    write_kernels(tmp_path / FILE, KERNELS)
    whole = pq.read_table(tmp_path / FILE)
    pq.write_table(whole.drop_columns(ADDED), tmp_path / FILE)
    old = read_kernels(tmp_path / FILE)
    assert [k.unknown for k in old] == [frozenset(ADDED if k.outcome else ()) for k in KERNELS]
    known, text = markdown(KERNELS).splitlines(), markdown(old).splitlines()
    changed = [(new, was) for new, was in zip(text, known, strict=True) if new != was]
    assert all("unknown" in new and "unknown" not in was for new, was in changed)
    figures = {new.split(" | ")[0] for new, _ in changed}
    assert {"| success, certified", "| candidates that compile and run", "| of these of a GPU"} < figures
    assert {"| a", "| 1"} < figures  # certified of each kernel, pass@k of successes
    write_kernels(tmp_path / "again.parquet", old)
    again = pq.read_table(tmp_path / "again.parquet")
    assert again.drop_columns(ADDED).equals(whole.drop_columns(ADDED))
    assert all(again[name].null_count == len(again) for name in ADDED)


def test_kernels_of_an_earlier_version_beside_new_ones_make_a_figure_unknown(tmp_path: Path) -> None:
    write_kernels(tmp_path / FILE, KERNELS[:2])
    pq.write_table(pq.read_table(tmp_path / FILE).drop_columns(ADDED), tmp_path / FILE)
    text = markdown(merged([read_kernels(tmp_path / FILE), KERNELS[2:]]))
    assert "| success, certified | unknown: an earlier version of evo did not store it for 2 of 4 kernels |" in text
    assert "| c | 30 | 1.50× |" in text
