"""evo reproduce: a folder of results is what its data say, or the report names what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import evo
from evo.cli.main import main
from evo.search import evaluators
from fitness.tasks.task import Task
from tests.cli_support import install

REFERENCE = Path(__file__).parent.parent / "runs" / "reference"


def reproduce(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["reproduce", str(folder), "--gpus", "none"])
    return code, capsys.readouterr().out.splitlines()


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(REFERENCE / name, tmp_path / name))


@pytest.mark.parametrize("name", ["tritonbench-g", "kernelbench-level1", "h200-ablation", "h200-strategies"])
def test_a_reference_of_tables_is_what_its_data_say(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = reproduce(REFERENCE / name, capsys)
    assert code == 0 and lines[-1].endswith("0 differs, 1 not checked"), lines
    assert sum(line.startswith("same: ") for line in lines) >= 2
    assert lines[-2].startswith("not checked: times of champions: the folder holds no store")


def test_decisions_and_champions_of_runs_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = reproduce(REFERENCE / "h200-claude", capsys)
    assert code == 0
    assert sum("16 decisions of" in line and line.startswith("same: ") for line in lines) == 2
    assert sum("best_kernel.py" in line and line.startswith("same: ") for line in lines) == 2
    assert any("no GPU measures here" in line for line in lines)


def test_a_table_that_was_changed_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(tmp_path, "h200-ablation")
    tables = folder / "tables.md"
    tables.write_text(tables.read_text().replace("| memetic | 28/30 |", "| memetic | 30/30 |"))
    code, lines = reproduce(folder, capsys)
    assert code == 1 and sum(line.startswith("differs: ") for line in lines) == 1
    assert "30/30" in lines[0] + lines[1] and "28/30" in lines[0] + lines[1]


def test_a_champion_that_was_changed_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(tmp_path, "h200-claude-24") / "int8_matmul"
    (folder / "best_kernel.py").write_text("# another kernel\n")
    evidence = json.loads((folder / "evidence.json").read_text())
    (folder / "evidence.json").write_text(json.dumps(evidence | {"trial": 1}))
    code, lines = reproduce(folder, capsys)
    assert code == 1 and sum(line.startswith("differs: ") for line in lines) == 2
    assert any("is not the source of trial" in line for line in lines)
    assert any("it speaks of trial 1" in line for line in lines)


def test_a_folder_with_nothing_to_check_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(tmp_path)]) == 2
    assert "got nothing to check" in capsys.readouterr().err
    assert main(["reproduce", str(tmp_path / "none")]) == 2
    assert "expected a folder of results" in capsys.readouterr().err


def test_a_champion_is_timed_again_with_the_settings_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(monkeypatch.setattr)
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))
    tasks, instant = [], evaluators.open_evaluator

    def noted(task: Task, *arguments: Any, **options: Any) -> Any:
        tasks.append(task)
        return instant(task, *arguments, **options)

    monkeypatch.setattr(evaluators, "open_evaluator", noted)
    evo.search("softmax", budget=15, workers=1, allow_delegation=0.25, run_dir="run")
    main(["reproduce", "run"])
    assert "same: time of the best of run: " in capsys.readouterr().out
    assert [(task.allow_delegation, task.min_own_share) for task in tasks] == [(True, 0.25)] * 2
