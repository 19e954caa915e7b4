"""`evo apply`: what it takes from a run, the words above the new code, and its command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evo.cli.main import main
from evo.core.errors import ConfigError, StoreError
from evo.programs.apply import find, header
from evo.storage.folders import TASK, keep_task
from tests.program_support import FASTER, SEED, write_program, write_run, write_task

SPEEDUPS = {"small": 1.5, "large": 2.0}


@pytest.fixture
def file(tmp_path) -> Path:
    return write_program(tmp_path, "prog_apply")


@pytest.fixture
def run(tmp_path, file) -> Path:
    return write_run(tmp_path / "run", write_task(tmp_path / "scaling", file, module="__main__"), [(FASTER, SPEEDUPS)])


def words(run: Path) -> str:
    found = find(run, print, opener=None)
    assert found is not None
    return "\n".join(header(found))


def test_the_header_says_what_was_measured_and_what_was_verified(run, tmp_path):
    text = words(run)
    assert "trial 1 of run run (" in text and "evo 0.0), task scaling" in text
    assert "1.73x [1.73, 1.73] over the original, estimated by a model of the NVIDIA H200" in text
    assert "small: x float32[64], factor 2.0: 1.50x [1.50, 1.50], 1 us -> 0.6667 us" in text
    assert "other: x float32[96], factor 2.0: verified, not timed" in text
    assert "Verdict: ok; certificate: nothing was certified on a GPU: no GPU is here" in text
    measured = words(write_run(tmp_path / "measured", tmp_path / "scaling", [(FASTER, SPEEDUPS)], measured=True))
    assert "measured on NVIDIA H200." in measured and "estimated" not in measured


def test_the_run_keeps_its_task_and_needs_no_other(run, tmp_path):
    shutil.rmtree(tmp_path / "scaling")
    assert "task scaling" in words(run)
    kernel = run / TASK / "kernel.py"
    kernel.write_text(kernel.read_text() + "# changed\n")
    with pytest.raises(StoreError, match="its files were changed; search again"):
        words(run)


def test_a_run_of_an_earlier_version_is_refused(tmp_path, file):
    run = write_run(tmp_path / "run", write_task(tmp_path / "scaling", file), [(FASTER, SPEEDUPS)], keep=False)
    with pytest.raises(StoreError, match="which runs of earlier versions lack; search again"):
        find(run, print, opener=None)


def test_a_run_that_did_not_end_is_refused(run):
    shutil.rmtree(run / "best")
    with pytest.raises(StoreError, match="continue it by evo resume"):
        find(run, print, opener=None)


def test_a_task_that_was_not_made_of_a_program_is_refused(run):
    (run / TASK / "origin.json").unlink()
    with pytest.raises(ConfigError, match=r"has no origin.json; capture the program by `evo capture`"):
        find(run, print, opener=None)


def test_files_of_values_are_kept_and_a_folder_without_a_task_is_not(tmp_path, file):
    task = write_task(tmp_path / "scaling", file)
    (task / "values.npy").write_bytes(b"values")
    (tmp_path / "run").mkdir()
    keep_task(tmp_path / "run", task)
    keep_task(tmp_path / "run", task)  # a second time, as a campaign that goes on does
    assert {p.name for p in (tmp_path / "run" / TASK).iterdir()} == {p.name for p in task.iterdir()}
    (tmp_path / "other").mkdir()
    keep_task(tmp_path / "other", tmp_path)
    assert not (tmp_path / "other" / TASK).exists()


# --- the command line ------------------------------------------------------------------------------------------------


def test_it_prints_a_diff_and_changes_the_file_only_if_asked(run, file, capsys):
    before = file.read_text()
    assert main(["apply", str(run), "--to", str(file), "--single"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("--- a/ops.py\n+++ b/ops.py\n@@") and file.read_text() == before
    assert "--write changes it" in printed.err and "warning: its speedup is an estimate" in printed.err
    assert main(["apply", str(run), "--to", str(file), "--single", "--write"]) == 0
    assert "BLOCK=32" in file.read_text() and file.read_text() != before
    assert main(["apply", str(run), "--to", str(file), "--single"]) == 2
    assert "was changed since; restore it, or capture the program again" in capsys.readouterr().err


def test_it_writes_a_package(run, tmp_path, capsys):
    assert main(["apply", str(run), "--package", str(tmp_path / "made"), "--single"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [str(tmp_path / "made" / name) for name in FILES]
    assert "`import made.patch` replaces __main__.scale by 1.73x" in printed.err


FILES = ("__init__.py", "patch.py", "kernel.py", "guard.py", "domain.json", "origin.json")


def test_nothing_faster_is_nothing_to_apply(tmp_path, file, capsys):
    slow = write_run(
        tmp_path / "slow", write_task(tmp_path / "scaling", file), [(FASTER, dict.fromkeys(SPEEDUPS, 0.9))]
    )
    assert main(["apply", str(slow), "--to", str(file)]) == 1
    assert "found nothing faster than the original" in capsys.readouterr().err
    assert file.read_text().count("BLOCK=16") == SEED.count("BLOCK=16")


def test_misuse_is_said(run, tmp_path, capsys):
    for arguments, message in [
        (["--package", str(tmp_path / "made"), "--write"], "--write: expected it with --to FILE"),
        (["--to", str(tmp_path / "none.py"), "--single"], "expected the file that was captured"),
    ]:
        assert main(["apply", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["apply", str(tmp_path / "none"), "--package", str(tmp_path / "made")]) == 2
    assert "expected a run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["apply", str(run)])
    assert left.value.code == 2 and "one of the arguments --to --package is required" in capsys.readouterr().err
