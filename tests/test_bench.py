"""`evo bench`, from a checkout to its summary: real sandbox, compiler, interpreter and search."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

import fitness.tasks.task
from evo.campaign import suite
from evo.cli.main import main
from fitness.suites.tritonbench import FOLDER
from tests.test_suites_tritonbench import BROKEN, SCALE

FILES = {"scale": SCALE, "broken": BROKEN}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout" / FOLDER).mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "checkout" / FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path / "checkout"


def bench(checkout: Path, *more: str) -> int:
    out = str(checkout.parent / "out")
    return main(["bench", "tritonbench", "--path", str(checkout), "--out", out, "--gpus", "none", *more])


def test_a_suite_is_searched_summed_up_and_gone_on_with(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(checkout, "--budget", "2", "--workers", "1") == 0
    said = capsys.readouterr().out
    assert "1 of 2 files can be searched" in said
    out = checkout.parent / "out"
    summary = (out / "summary.md").read_text()
    assert "2 files: 1 searched, 1 not runnable here" in summary
    assert "estimated by a model" in summary
    assert "no_such_module" in summary
    rows = {row["kernel"]: row for row in pq.read_table(out / "kernels.parquet").to_pylist()}
    assert rows["scale"]["candidates"] == 2
    assert rows["scale"]["estimated"] is True

    # A line cut off by a kill is of a file that is checked again; what is known and finished is not repeated.
    checked = (out / "checked.jsonl").read_text().splitlines()
    kept = next(line for line in checked if json.loads(line)["name"] == "scale")
    (out / "checked.jsonl").write_text(kept + "\n" + '{"name": "brok')
    assert bench(checkout, "--budget", "2", "--workers", "1") == 0
    again = capsys.readouterr().out
    assert "broken" in again
    assert "scale" not in again.partition("files can be searched")[0]
    assert (out / "summary.md").read_text() == summary
    best = out / "runs" / "scale" / "evolve" / "seed-0" / "best"
    assert not best.exists()
    # Asked for later, of what is finished.
    assert bench(checkout, "--budget", "2", "--workers", "1", "--best") == 0
    evidence = json.loads((best / "evidence.json").read_text())
    assert not evidence["certified"] and "estimated" in evidence["certificate"]["message"]
    assert "scale_kernel" in (best / "kernel.py").read_text()
    capsys.readouterr()
    assert bench(checkout, "--budget", "2", "--workers", "1", "--best") == 0
    assert "preparing" not in capsys.readouterr().out


def test_processes_share_the_searches(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("scale2", "scale3"):
        (checkout / FOLDER / f"{name}.py").write_text(SCALE, encoding="utf-8")
    assert bench(checkout, "--budget", "2", "--workers", "2", "--processes", "2", "--best") == 0
    assert len(list((checkout.parent / "out").glob("runs/*/*/*/best/evidence.json"))) == 3
    said = capfd.readouterr().out
    assert said.count("budget spent") == 3  # each by one process
    assert said.count("4 files: 3 searched, 1 not runnable here") == 1
    rows = pq.read_table(checkout.parent / "out" / "kernels.parquet").to_pylist()
    assert sorted(row["kernel"] for row in rows if row["candidates"] == 2) == ["scale", "scale2", "scale3"]


def test_misuse_is_said_before_any_file_is_checked(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(checkout, "--strategy", "best-of-n") == 2
    assert (
        "--strategy: expected a model for best-of-n to ask, got none; add --model NAME@BASE_URL"
        in capsys.readouterr().err
    )
    assert bench(checkout, "--budget", "0") == 2
    assert bench(checkout, "--only", "nothing") == 2
    assert bench(checkout, "--processes", "0") == 2
    assert bench(checkout, "--budget", "99999999999") == 2
    assert not (checkout.parent / "out").exists()


def test_a_folder_of_another_campaign_is_left_as_it_was(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = checkout.parent / "out"
    assert bench(checkout, "--only", "broken", "--budget", "2") == 1
    (out / "suite.json").unlink()
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    capsys.readouterr()
    assert bench(checkout, "--budget", "3") == 2
    assert "cannot continue the campaign" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    # Where it is the same one, what was lost is written again.
    assert bench(checkout, "--only", "broken", "--budget", "2") == 1
    assert json.loads((out / "suite.json").read_text())["suite"] == "tritonbench"


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"suite": []}'])
def test_a_damaged_suite_file_is_refused_in_words(
    checkout: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    out = checkout.parent / "out"
    out.mkdir()
    (out / "suite.json").write_text(text)
    assert bench(checkout) == 2
    assert "suite.json is damaged: expected the suite as evo bench wrote it" in capsys.readouterr().err
    assert main(["suite", "summary", str(out)]) == 2
    assert "restore it from a copy, or delete it" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["suite.json"]
    assert main(["suite", "summary", str(out / "nosuch")]) == 2
    assert "(No such file or directory); name what evo bench was given as --out" in capsys.readouterr().err


def test_what_compiles_longest_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is known by then."""
    monkeypatch.setattr(fitness.tasks.task, "load_task", lambda path, tried: SimpleNamespace(name=path.name, hash=""))
    chosen = [SimpleNamespace(name=name) for name in ("quick", "slow", "wrong", "late", "slower")]
    arriving = suite.arriving(tmp_path, chosen, lambda: None, models=False)
    with suite.adding(tmp_path / suite.CHECKED) as add:
        assert next(arriving) is None
        for name, seconds in (("quick", 1.0), ("wrong", 9.0), ("slow", 5.0)):
            stages = [] if name == "wrong" else ["verified"]
            add({"name": name, "stages": stages, "seconds": {"compiled": seconds}})
        assert next(arriving).name == "slow"
        for name, seconds in (("late", 0.5), ("slower", 7.0)):
            add({"name": name, "stages": ["verified"], "seconds": {"compiled": seconds}})
    assert [task.name for task in arriving] == ["slower", "quick", "late"]


def test_an_ablation_over_a_suite_by_strategies(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """evo ablate and evo bench on the same files: the same campaign, and the same summary of it."""
    monkeypatch.chdir(checkout.parent)
    spec = (
        'seeds = 1\nvariants = ["random", "hillclimb"]\n[suite]\nname = "tritonbench"\npath = "checkout"\n'
        'only = "scale"\n[budget]\ntrials = 1\n'
    )
    Path("spec.toml").write_text(spec)
    assert main(["ablate", "spec.toml", "--no-figures", "--gpus", "none", "--workers", "1", "--out", "ablated"]) == 0
    assert "1 task, 1 run a variant" in capsys.readouterr().out
    options = ("--only", "scale", "--budget", "1", "--strategy", "random,hillclimb", "--workers", "1")
    assert bench(checkout, *options) == 0
    assert "Against random." in capsys.readouterr().out
    for name in ("summary.md", "tables.md"):
        text = Path("out", name).read_text()
        figures = ("seconds of evaluation", "of these of a GPU")
        lines = [
            [n for n in t.splitlines() if not any(f in n for f in figures)]
            for t in (text, Path("ablated", name).read_text())
        ]
        assert lines[0] == lines[1]
    assert text != "" and Path("out/summary.md").read_text().startswith("# random\n\n1 files: 1 searched")
    assert main(["suite", "summary", "out"]) == 0
    assert capsys.readouterr().out.strip() == Path("out/summary.md").read_text().strip()
