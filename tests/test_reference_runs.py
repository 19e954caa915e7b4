"""Committed runs in which a model took part, made again offline, decision by decision.

`tests/test_cpu_backend.py` verifies their winners.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.cli.main import main

REFERENCE = Path(__file__).parent.parent / "runs" / "reference"
RUNS = sorted(REFERENCE.glob("h200-claude*/*/run.sqlite"))
WON = [path for path in RUNS if (path.parent / "best_kernel.py").exists()]
ANSWERS = {"h200-claude": 8, "h200-claude-24": 24}


def name(path: Path) -> str:
    return path.parent.relative_to(REFERENCE).as_posix()


@pytest.mark.parametrize("path", RUNS, ids=name)
def test_every_decision_is_made_again_from_the_recorded_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(path.parent)]) == 0
    count = ANSWERS[path.parent.parent.name]
    assert f"{count} questions and {count} proposals made again: all the same" in capsys.readouterr().out


def test_there_are_runs() -> None:
    assert len(RUNS) == 6 and len(WON) == 6
