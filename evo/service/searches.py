"""Searches that a client of the service starts: `evo.search` in a thread, with run folders below the service's."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo.core.errors import EvoError, ServiceError
from evo.core.text import short
from evo.service.tasks import Entry
from evo.storage.folders import new_run_folder

if TYPE_CHECKING:
    from evo.result import Result

MOST_BUDGET = 512  # candidates of one search
_ID = re.compile(r"[A-Za-z0-9_.-]{1,80}-\d{3,}")


@dataclass(frozen=True)
class SearchDevices:
    """What searches evaluate with: as --gpus, --target and --ray-address take it."""

    gpus: str | None = None
    target: str = "sm_90"
    ray_address: str | None = None


@dataclass
class _Running:
    thread: threading.Thread
    error: str = ""


class Searches:
    """Starts searches and reads how they go.  Each belongs to the token that started it; only rules propose."""

    def __init__(self, folder: Path, devices: SearchDevices, stop: Callable[[], bool], most: int = 1) -> None:
        """stop: asks all searches to end after what is being evaluated; most: searches at once."""
        self._folder, self._devices, self._stop, self._most = folder, devices, stop, most
        self._running: dict[Path, _Running] = {}
        self._lock = threading.Lock()

    def start(self, task: Entry, token: str, budget: int, seed: int) -> str:
        """Starts a search and returns its id.  Raises ServiceError if too many run."""
        if not 1 <= budget <= MOST_BUDGET:
            raise ServiceError(f"budget: expected a number from 1 to {MOST_BUDGET}, got {budget}", 422)
        if not 0 <= seed < 2**63:
            raise ServiceError(f"seed: expected a number from 0, got {seed}", 422)
        if self._stop():
            raise ServiceError("the service is stopping; start the search when it is back", 503, 5)
        with self._lock:
            busy = [path.name for path, each in self._running.items() if each.thread.is_alive()]
            if len(busy) >= self._most:
                raise ServiceError(f"expected at most {self._most} search at once; wait for the end of it", 429, 30)
            folder = new_run_folder(self._folder / token, task.name)
            thread = threading.Thread(target=self._search, args=(task, folder, budget, seed), name=folder.name)
            self._running[folder] = _Running(thread)
            thread.start()
        return folder.name

    def _search(self, task: Entry, folder: Path, budget: int, seed: int) -> None:
        from evo.api import search

        devices = self._devices
        try:
            search(
                str(task.folder),
                budget=budget,
                seed=seed,
                gpus=devices.gpus,
                target=devices.target,
                ray_address=devices.ray_address,
                run_dir=folder,
                stop=self._stop,
            )
        except EvoError as error:
            self._running[folder].error = short(str(error))
        except Exception as error:
            self._running[folder].error = short(f"evo failed: {type(error).__name__}: {error}")
            raise  # the thread prints it

    def find(self, search: str, token: str) -> tuple[str, Result | None, str]:
        """(state, what the run found so far, why it failed): "running", "ended", "interrupted" or "failed".

        The result is None before the run exists.  Raises ServiceError (404) for an unknown id.
        """
        from evo.result import Result
        from evo.storage.folders import FILE

        folder = self._folder / token / search
        if not _ID.fullmatch(search) or not folder.is_dir():
            raise ServiceError(f"no search {short(search[:80])!r}; start_search returns the id of one", 404)
        running = self._running.get(folder)
        result = Result(folder) if (folder / FILE).exists() else None
        if running is not None and running.thread.is_alive():
            return "running", result, ""
        if running is not None and running.error:
            return "failed", result, running.error
        ended = result is not None and result.stop_reason not in ("", "interrupted")
        return "ended" if ended else "interrupted", result, ""

    def close(self) -> None:
        """Waits for the searches to stop; `stop` asks them to."""
        for each in list(self._running.values()):
            each.thread.join()
