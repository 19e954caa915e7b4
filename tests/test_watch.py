"""evo.cli.watch_panel and its command: a run seen from another process, whatever state it is in."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from evo.cli.main import main
from evo.cli.watch_panel import RECENT, RunPanel, watch
from evo.storage.queries import RunReader
from evo.storage.store import is_written
from tests.engine_support import create, failed_trial, ok_trial, search
from tests.test_kill import BUDGET, ROOT, await_search, start


def keep(store, trial) -> None:
    store.proposed(trial.proposal)
    store.finished(trial)


def shown(folder: Path, *, terminal: bool = False, **more) -> str:
    out = io.StringIO()
    with RunReader(folder) as run:
        watch(run, Console(file=out, width=100, force_terminal=terminal), **more)
    return out.getvalue()


def test_a_finished_run_is_shown_and_left(tmp_path: Path) -> None:
    with create(tmp_path, budget=30) as store:
        search(store)
        best = store.best()
    assert best is not None and best.fitness is not None
    for options in ({}, {"once": True}, {"terminal": True}, {"terminal": True, "once": True}):
        text = shown(tmp_path, **options)
        assert f"best: {best.fitness.speedup:.2f}x" in text
        assert "ended: budget spent" in text
    lines = shown(tmp_path, once=True).splitlines()
    with RunReader(tmp_path) as run:
        last = [str(trial.index) for trial in run.trials()][: -RECENT - 1 : -1]
    assert [line.split()[0] for line in lines[-RECENT:]] == last


def test_nothing_is_said_of_operators_before_one_was_used(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        keep(store, ok_trial(0, operator="seed"))
        assert "better than their parents" not in shown(tmp_path, once=True)
        keep(store, ok_trial(1, 2.0))
        assert "better than their parents: mutate 0 of 1" in shown(tmp_path, once=True)


def test_what_is_new_is_taken_in_once(tmp_path: Path) -> None:
    with create(tmp_path) as store, RunReader(tmp_path) as run:
        out = io.StringIO()
        view = RunPanel(run, Console(file=out, width=200))
        assert view.poll()
        assert view.state == "running"
        keep(store, ok_trial(0, operator="seed"))
        keep(store, ok_trial(1, 2.0))
        assert view.poll()
        keep(store, failed_trial(2, message="[bold]not markup"))
        store.proposed(ok_trial(3).proposal)
        assert view.poll() and view.poll()
        assert view.best_text() == "best: 2.00x [1.80, 2.20] estimated, trial 1"
        assert view.state_text() == "running; 1 pending"
        view._console.print(view.panel())
    assert "2/40 candidates" in out.getvalue()
    assert "[bold]not markup" in out.getvalue()
    assert "1 wrong" in out.getvalue()


def test_a_run_whose_process_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        keep(store, ok_trial(0, operator="seed"))
        assert is_written(tmp_path)
    assert not is_written(tmp_path)
    assert "no process on this machine runs it; go on by `evo resume" in shown(tmp_path)


def test_watching_leaves_a_run_alone_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    await_search(process)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "evo", "watch", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    out, _ = watcher.communicate(timeout=120)
    assert process.wait() == watcher.returncode == 0
    assert out.endswith("ended: budget spent\n")
    assert f"trial {BUDGET} " in out, "the last trial has a line"


def test_ctrl_c_ends_watching_and_not_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with create(folder) as store:
        keep(store, ok_trial(0, operator="seed"))
        watcher = subprocess.Popen(
            [sys.executable, "-u", "-m", "evo", "watch", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert watcher.stdout is not None
        assert watcher.stdout.readline().startswith("instant, evolve")
        time.sleep(0.1)
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(timeout=60) == 0
        keep(store, ok_trial(1, 2.0))  # the run is written all the same


def test_what_is_no_run_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "expected a run in" in capsys.readouterr().err
