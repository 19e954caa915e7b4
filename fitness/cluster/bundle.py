"""Packs what is sent to the machines of a cluster: the settings of all workers, and tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError, TaskError
from fitness.frontend.target import Target
from fitness.sandbox.jobs import Limits
from fitness.tasks.task import Task, load_task

FILES_BYTES = 64 << 20  # of a task's folder, sent to every actor


@dataclass(frozen=True)
class WorkerSettings:
    """Settings that are the same for all tasks."""

    target: Target
    measured: bool
    limits: Limits
    versions: Callable[[], Mapping[str, str]]  # versions that decide results, on the machine that calls it
    expected: Mapping[str, str]  # the driver's

    def check_versions(self) -> None:
        """Raises ConfigError if this machine would find other results than the driver's."""
        here = self.versions()
        differ = [
            f"{name} {found} instead of {self.expected.get(name)}"
            for name, found in here.items()
            if _public(found) != _public(self.expected.get(name, ""))
        ]
        if differ:
            raise ConfigError(f"node {socket.gethostname()} has {', '.join(differ)}; install the same on all nodes")


def _public(version: str) -> str:
    """Returns the version without its local part.

    Nodes with and without a GPU have other builds of torch ("2.11.0+cpu").
    """
    return version.partition("+")[0]


@dataclass(frozen=True)
class TaskBundle:
    """A task in the form in which it is sent to other machines."""

    name: str
    files: Mapping[str, bytes]  # its folder, without folders in it
    hash: str
    settings: Mapping[str, Any]  # `Task.run_settings`

    @classmethod
    def of(cls, task: Task) -> TaskBundle:
        """Packs a task.  Raises ConfigError if it is too large to be sent around."""
        paths = [path for path in task.folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        size = sum(path.stat().st_size for path in paths)
        if size > FILES_BYTES:
            raise ConfigError(
                f"{task.folder}: expected at most {FILES_BYTES >> 20} MiB of files, which are sent to all nodes, "
                f"got {size >> 20} MiB; move what the task does not need elsewhere"
            )
        return cls(task.name, {path.name: path.read_bytes() for path in paths}, task.hash, task.run_settings)

    def load(self, folder: Path) -> Task:
        """Returns the task, from files written to `folder`.  Raises TaskError if it is not the driver's."""
        home = folder / self.name
        home.mkdir(parents=True)
        for name, data in self.files.items():
            (home / name).write_bytes(data)
        task = load_task(home, tried=True)  # by the driver
        if task.hash != self.hash:
            raise TaskError(f"task {self.name!r} was changed while the run started; start it again")
        return task.with_run_settings(self.settings)
