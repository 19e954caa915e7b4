"""Committed runs in which a model took part: made again offline, decision by decision, and their winners verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.cli.main import main
from evo.core.records import Candidate, Verdict
from evo.storage.queries import RunReader

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


@pytest.mark.parametrize("path", WON, ids=name)
def test_the_winner_is_right_without_a_gpu_too(evaluators, path: Path) -> None:
    with RunReader(path.parent) as run:
        best, task = run.best(), run.info.config.task
    assert best is not None and best.index > 0
    source = (path.parent / "best_kernel.py").read_text()
    assert best.evaluation is not None
    assert source == (best.evaluation.frozen_source or best.proposal.candidate.source)
    evaluation = evaluators(task).evaluate(Candidate(source), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message


def test_there_are_runs() -> None:
    assert len(RUNS) == 6 and len(WON) == 6
