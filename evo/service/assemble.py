"""Puts a service together: store, tasks, evaluators, searches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo.core.errors import ConfigError, StoreError
from evo.core.versions import versions
from evo.search.evaluators import Devices, find_devices
from evo.search.options import check_seed, check_workers
from evo.service.searches import SearchDevices, Searches
from evo.service.tasks import TaskRegistry
from evo.service.work import Service, Settings
from evo.storage.requests import RequestStore

if TYPE_CHECKING:
    from fitness.frontend.target import Target


@dataclass(frozen=True)
class Parts:
    """A service and what belongs to it.  lines: what evaluates, in words."""

    service: Service
    tasks: TaskRegistry
    searches: Searches
    target: Target
    folder: Path
    lines: Sequence[str]

    def close_searches(self) -> None:
        """Ends searches after what they are evaluating.  Call it when the service is closed."""
        self.service.draining = True
        self.searches.close()


def open_service(
    folder: Path | None,
    task_folders: Sequence[Path] = (),
    *,
    gpus: str | None = None,
    target: str = "sm_90",
    ray_address: str | None = None,
    workers: int | None = None,
    queue: int = Settings.queue,
    seed: int = 0,
    allow_code: bool = False,
) -> Parts:
    """Opens the service whose state is in `folder`; None: a new runs/mcp-NUMBER, or one that is free.

    gpus, target, ray_address, workers, seed: as `evo.Evaluator` takes them.  queue: evaluations of one token that may
    wait.  allow_code: whether clients may upload a task.py.  Raises ConfigError, StoreError.
    """
    from fitness.frontend.target import get_target

    check_workers(workers)
    check_seed(seed)
    if queue < 1:
        raise ConfigError(f"--queue: expected a number from 1, got {queue}")
    found = get_target(target)
    devices = find_devices(gpus, ray_address, target)
    store, folder = _open_store(folder, _meta(devices, target, seed))
    try:
        tasks = TaskRegistry(store, folder / "tasks", task_folders, allow_code=allow_code)
        settings = Settings(workers=devices.workers(workers), queue=queue, seed=seed)
        service = Service(store, devices.open_factory(target), tasks.load, settings)
    except BaseException:
        store.close()
        raise
    searches = Searches(folder / "searches", SearchDevices(gpus, target, ray_address), lambda: service.draining)
    return Parts(service, tasks, searches, found, folder, devices.lines)


def _meta(devices: Devices, target: str, seed: int) -> Mapping[str, str]:
    """What decides results: a folder has those of one evaluator only."""
    return {**versions(), "device": devices.choice.device, "target": target, "seed": str(seed)}


def _open_store(folder: Path | None, meta: Mapping[str, str]) -> tuple[RequestStore, Path]:
    if folder is not None:
        return RequestStore(folder, meta), folder
    for number in itertools.count(1):
        free = Path("runs") / f"mcp-{number:03}"
        try:
            return RequestStore(free, meta), free
        except StoreError:  # in use by another session, or of another version
            if number == 1000:
                raise
    raise AssertionError("the loop ends by itself")
