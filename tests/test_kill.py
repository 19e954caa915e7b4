"""Runs in processes of their own that are killed, interrupted and gone on with."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evo.storage.queries import RunReader
from tests.engine_support import facts

ROOT = Path(__file__).parent.parent
BUDGET, KILLS = 300, 20
SLEEP_S = 0.005  # an evaluation


def start(folder: Path, budget: int = BUDGET, workers: int = 1, sleep_s: float = SLEEP_S) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engine_run", str(folder), str(budget), str(workers), str(sleep_s)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def await_search(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"


def finished(folder: Path) -> list[str]:
    """Ids of the candidates with an evaluation, in the order they got it."""
    with RunReader(folder) as run:
        return [trial.evaluation.candidate for trial in run.trials()]


def logged(folder: Path) -> list[str]:
    log = folder.with_suffix(".log")
    return log.read_text().splitlines() if log.exists() else []


def test_kill_9_loses_and_repeats_nothing_finished(tmp_path: Path) -> None:
    rng = random.Random(20)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = start(whole)
    done: list[str] = []
    pending_at_kill = 0
    for kill in range(KILLS):
        evaluations_before = len(logged(killed))
        process = start(killed)
        if kill % 5 == 4:  # some while the process is still starting
            time.sleep(rng.uniform(0.0, 0.5))
        else:
            await_search(process)
            time.sleep(rng.uniform(0.0, 0.12))
        process.kill()
        process.wait()
        if (killed / "run.sqlite").exists():
            after = finished(killed)
            assert after[: len(done)] == done, "a finished trial was lost or changed"
            repeated = set(logged(killed)[evaluations_before:]) & set(done)
            assert not repeated, "a finished trial was evaluated again"
            done = after
            with RunReader(killed) as run:
                pending_at_kill += len(run.pending())
        if len(done) > BUDGET // 2:
            break  # on a busy machine a kill comes late; the rest is for the run that goes on
    assert 0 < len(done) < BUDGET, "the kills did not fall into the run"
    assert pending_at_kill > 0
    assert start(killed).wait() == 0
    assert uninterrupted.wait() == 0
    assert len(finished(killed)) == BUDGET + 1
    assert facts(killed) == facts(whole)


def test_kill_9_with_several_workers_evaluates_all_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(3):
        process = start(folder, budget=80, workers=3)
        await_search(process)
        time.sleep(0.06)
        process.kill()
        process.wait()
    assert start(folder, budget=80, workers=3).wait() == 0
    with RunReader(folder) as run:
        assert run.pending() == []
        assert sorted(trial.index for trial in run.trials()) == list(range(81))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_what_is_in_flight(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    process = start(folder, workers=2)
    await_search(process)
    while not logged(folder)[1:]:
        time.sleep(0.01)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.startswith("stopping\ninterrupted")
    with RunReader(folder) as run:
        assert 0 < len(list(run.trials())) < BUDGET
        assert run.events()[-1][:2] == ("ended", "interrupted")


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, sleep_s=60.0)
    while not logged(folder):  # it sleeps over its first evaluation
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"  # two signals at once would be one
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=50) == 131  # the evaluation takes longer


def test_a_run_can_be_read_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    await_search(process)
    counts = []
    while process.poll() is None:
        counts.append(len(finished(folder)))
        time.sleep(0.05)
    assert process.returncode == 0
    assert counts == sorted(counts)
    assert len(set(counts)) > 3, "the reader saw no progress"
    assert len(finished(folder)) == BUDGET + 1


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = start(folder)
    await_search(first)
    second = subprocess.run(
        [sys.executable, "-m", "tests.engine_run", str(folder), "10", "1", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert second.returncode != 0
    assert f"process {first.pid} is running" in second.stderr
    assert first.wait() == 0
