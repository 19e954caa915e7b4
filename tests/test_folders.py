"""Folders of runs: what a path means, and what is said of a folder without a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evo.cli.main import main
from evo.storage.folders import FILE, run_folder, runs_in, what_instead
from evo.storage.queries import RunReader
from tests.cli_support import install


def made(*paths: Path) -> Path:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return paths[0].parent


def test_a_run_is_meant_by_its_parts_too(tmp_path: Path) -> None:
    run = made(tmp_path / "run" / FILE, tmp_path / "run/best/kernel.py")
    for path in (run, run / FILE, run / "best"):
        assert run_folder(str(path)) == run
    alone = made(tmp_path / "best" / FILE)
    assert run_folder(str(alone)) == alone  # a run of that name
    assert run_folder(str(tmp_path / "else/best")) == tmp_path / "else/best"


def test_runs_below_a_folder_are_found_in_order(tmp_path: Path) -> None:
    runs = [made(tmp_path / f"c/runs/t/{variant}/seed-0" / FILE) for variant in ("a", "b")]
    assert runs_in(tmp_path) == runs and runs_in(runs[0]) == [runs[0]]
    assert runs_in(tmp_path / "none") == [tmp_path / "none"]


INSTEAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda f: None, "start one by `evo run --run-dir {}`"),
    "file": (lambda f: f.write_text(""), "it is a file"),
    "task": (lambda f: made(f / "task.py"), "it is a task; search by `evo run {}`"),
    "campaign": (
        lambda f: made(f / "campaign.json", f / "runs/t/a/seed-0" / FILE),
        "it is a campaign; name one of its runs, e.g. {}/runs/t/a/seed-0",
    ),
    "runs": (
        lambda f: made(*(f / f"r{n}" / FILE for n in range(5))),
        "it is a folder of runs; name one of its runs, e.g. {0}/r0, {0}/r1, {0}/r2",
    ),
    "other": (lambda f: made(f / "notes.txt"), "the folders below have no run either"),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_a_folder_is_that_holds_no_run(name: str, tmp_path: Path) -> None:
    make, words = INSTEAD[name]
    folder = tmp_path / "folder"
    make(folder)
    found = what_instead(folder)
    assert words.format(folder) in found and "r3" not in found


@pytest.mark.parametrize("options", [(), ("--propose-only", "2")])
@pytest.mark.parametrize(
    ("file", "run_dir", "words"),
    [
        ("c/campaign.json", "c", "c is the folder of a campaign (campaign.json); choose another --run-dir"),
        ("c/suite.json", "c", "c is the folder of a campaign (suite.json); choose another --run-dir"),
        ("t/task.py", "t", "t is the folder of a task (task.py); choose another --run-dir"),
        ("r/run.sqlite", "r/best", "r/best is best/ of the run in r; choose another --run-dir"),
    ],
)
def test_a_run_is_put_into_no_folder_that_is_something_else(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    run_dir: str,
    words: str,
    options: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = install(monkeypatch.setattr)
    made(Path(file))
    assert main(["run", "--budget", "2", "--run-dir", run_dir, *options]) == 2
    assert words in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / file]
    assert not opened


def test_a_run_may_be_called_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    install(monkeypatch.setattr)
    assert main(["run", "--budget", "2", "--run-dir", "best"]) == 0
    with RunReader(Path("best")) as run:
        assert len(list(run.trials())) == 3
