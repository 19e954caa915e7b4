"""Finds folders of runs, and says what another folder is."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from evo.core.errors import ConfigError, StoreError
from evo.core.text import quoted

FILE = "run.sqlite"
TASK = "task"  # folder in that of a run, with the files of its task as they were at its begin
_DEPTH = 4  # of a campaign's runs below its folder: runs/TASK/VARIANT/seed-N
_SHOWN = 3


def run_folder(text: str) -> Path:
    """Returns the folder of the run that a path on the command line means: its own, its database, or its `best`."""
    path = Path(text)
    if path.name == FILE or (path.name == "best" and not (path / FILE).exists() and (path.parent / FILE).exists()):
        return path.parent
    return path


def new_run_folder(parent: Path, task: str) -> Path:
    """Makes parent/TASK-NNN with the first free number and returns it.  Raises OSError.

    It is made now, so that two runs started at once do not meet.
    """
    number = 1
    while True:
        folder = parent / f"{task}-{number:03}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def runs_in(folder: Path) -> list[Path]:
    """Returns all runs below a folder such as a campaign's; for a run's folder, or without any, the folder itself."""
    below = [] if (folder / FILE).exists() else sorted(path.parent for path in folder.rglob(FILE))
    return below or [folder]


def check_once(runs: Sequence[Path | str]) -> None:
    """Raises ConfigError if a run is named twice."""
    paths = [Path(run).resolve() for run in runs]
    twice = {str(run) for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1}
    if twice:
        raise ConfigError(f"runs: expected each run once, got {', '.join(sorted(twice))} twice; drop the repetition")


def what_instead(folder: Path) -> str:
    """Returns what a folder without a run is, and what to do about it."""
    if not folder.exists():
        return f"nothing is there; start one by `evo run --run-dir {quoted(folder)}`, or check the path"
    if not folder.is_dir():
        return "it is a file; name the folder of a run"
    if (folder / "task.py").exists():
        return f"it is a task; search by `evo run {quoted(folder)}`, which prints the folder of its run"
    runs = [str(path.parent) for path in itertools.islice(_runs_near(folder), _SHOWN)]
    if runs:
        kind = "a campaign" if (folder / "campaign.json").exists() else "a folder of runs"
        return f"it is {kind}; name one of its runs, e.g. {', '.join(runs)}"
    return "the folders below have no run either; name the folder of a run"


def owner(folder: Path) -> str:
    """Returns what uses a folder that has no run, e.g. "the folder of a task (task.py)"; "" if nothing does."""
    kinds = {"campaign.json": "campaign", "suite.json": "campaign", "task.py": "task"}
    for file, kind in kinds.items():
        if (folder / file).exists():
            return f"the folder of a {kind} ({file})"
    path = folder.resolve()
    return f"best/ of the run in {folder.parent}" if path.name == "best" and (path.parent / FILE).exists() else ""


def _runs_near(folder: Path) -> Iterator[Path]:
    """Yields runs a few levels below, not in the whole tree: it may be a home directory."""
    for depth in range(1, _DEPTH + 1):
        yield from sorted(folder.glob("*/" * depth + FILE))


def keep_task(run: Path, task: Path) -> None:
    """Copies the files of a task's folder to that of a run, for readers of later days: the task may change or move.

    Data files, which may be large, are linked if the disk can.  A folder without a task is left alone: tasks that were
    never written have none.  Raises StoreError if the copy fails.
    """
    if not (task / "task.py").exists():
        return
    kept = run / TASK
    try:
        kept.mkdir(exist_ok=True)
        for path in (path for path in task.iterdir() if path.is_file()):
            there = kept / path.name
            there.unlink(missing_ok=True)
            if path.suffix not in (".py", ".json"):
                try:
                    os.link(path, there)
                    continue
                except OSError:  # another file system
                    pass
            shutil.copyfile(path, there)
    except OSError as error:
        raise StoreError(f"expected to write {kept}, got: {error}; check the disk and its permissions") from error


def kept_task(run: Path) -> Path:
    """Returns the folder with the files of a run's task.  Raises StoreError for a run of an earlier version."""
    folder = run / TASK
    if not (folder / "task.py").exists():
        raise StoreError(
            f"expected the files of its task in {folder}, which runs of earlier versions lack; search again"
        )
    return folder
