"""A task's own code: what it prints and raises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evo.core.errors import TaskError
from fitness.tasks.user_code import blamed, execute


def test_prints_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = execute(tmp_path / "task.py", "print('one', 'two', sep='-')\ndef inputs(): print('later')\n")
    names["inputs"]()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "one-two\nlater\n")


@pytest.mark.parametrize("source", ["import sys\nsys.exit(3)", "exit(3)", "raise SystemExit(3)"])
def test_leaving_is_an_error_of_the_task(source: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task\.py cannot be executed: SystemExit: 3 \(task\.py, line \d\)"):
        execute(tmp_path / "task.py", source + "\n")


def test_a_line_is_told_of_that_task_alone(tmp_path: Path) -> None:
    other = execute(tmp_path / "other/task.py", "\n\n\ndef fail(): raise ValueError('no')\n")
    path = tmp_path / "task.py"
    names = execute(path, "def call(f): f()\n")
    with pytest.raises(TaskError, match=r"^it: ValueError: no \(task\.py, line 1\)$"), blamed(path, "it:"):
        names["call"](other["fail"])
    with pytest.raises(TaskError, match=r"^it: ValueError: no$"), blamed(path, "it:"):
        other["fail"]()


def test_an_import_of_a_file_beside_it_is_explained(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "kernel.py").write_text("")
    with pytest.raises(TaskError, match=r"cannot be imported: put what it needs of helpers into task\.py$"):
        execute(tmp_path / "task.py", "import helpers")
    with pytest.raises(TaskError, match=r'into task\.py, or let .* by reference = "seed"$'):
        execute(tmp_path / "task.py", "from kernel import scale")
    with pytest.raises(TaskError, match=r"No module named 'elsewhere' \(task\.py, line 1\)$"):
        execute(tmp_path / "task.py", "import elsewhere")
    assert not [name for name in sys.modules if name.startswith("evo_task_")]
