"""Checks the files of a suite beside the searches over them: a search begins as soon as its file is verified.

What was found out is a line in the campaign's folder, so it is not done again, and other processes of the campaign see
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, suite
from evo.core.errors import StoreError
from evo.core.locks import try_lock

if TYPE_CHECKING:
    from fitness.suites import SuiteFile
    from fitness.suites.check import CheckOutcome

CHECKED = "checked.jsonl"  # how far each file came
TASKS = "tasks"  # folder of those made of files
LOCK = "checking.lock"
LOOK_S = 0.5  # between looks whether another process is done


class Checking:
    """Checks the files `chosen` in a thread while it is entered; leaving it by an exception stops it, else waits.

    afterwards: done with the outcomes once all files are checked, by the process that checked them.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        chosen: Sequence[SuiteFile],
        folder: Path,
        gpus: int,
        workers: int,
        afterwards: Callable[[Mapping[str, CheckOutcome]], None],
    ) -> None:
        self._arguments, self._chosen, self._folder = arguments, chosen, folder
        self._gpus, self._workers, self._afterwards = gpus, workers, afterwards
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checking")
        self._error: BaseException | None = None

    def __enter__(self) -> Checking:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.stop()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        if kind is None:
            self.raise_error()

    def stop(self) -> None:
        self._over.set()

    def raise_error(self) -> None:
        """Raises the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            (self._folder / TASKS).mkdir(parents=True, exist_ok=True)
            while not self._over.is_set():
                with try_lock(self._folder / LOCK) as mine:
                    if mine:
                        self._check()
                        return
                self._over.wait(LOOK_S)  # another process is at it, and may be killed
        except OSError as error:
            self._error = StoreError(f"expected to write to {self._folder}, got: {error}; choose another by --out")
        except BaseException as error:
            self._error = error

    def _check(self) -> None:
        path = self._folder / CHECKED
        known = read(self._folder)
        new = [source for source in self._chosen if source.name not in known]
        with adding(path) as add:
            of = (self._arguments, new, self._folder / TASKS, self._gpus, self._workers, self._over.is_set)
            for outcome in suite.outcomes(*of) if new else ():
                add(dataclasses.asdict(outcome))
                known[outcome.name] = outcome
                common.say(suite.line(outcome))
        if self._over.is_set():
            return
        able = sum(known[source.name].verified for source in self._chosen)
        common.say(f"{able} of {len(self._chosen)} files can be searched")
        self._afterwards(known)


def read(folder: Path) -> dict[str, CheckOutcome]:
    """Returns the outcomes of the files checked so far, by name."""
    from fitness.suites.check import CheckOutcome

    known = {field.name for field in dataclasses.fields(CheckOutcome)}
    found = rows(folder / CHECKED, ("name", "stages"))
    return {row["name"]: CheckOutcome(**{k: v for k, v in row.items() if k in known}) for row in found}


def rows(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Returns the rows that `adding` added.  A line that a kill cut off is left out: its work is done again.

    Raises StoreError for a line that is whole and has not all of `keys`.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
            if not isinstance(row, dict) or not set(keys) <= set(row):
                raise StoreError(
                    f"{path}, line {number}: expected {', '.join(keys)} as evo bench wrote them, got {line:.100}; "
                    f"delete the line, and what it was of is done again"
                )
            yield row


@contextmanager
def adding(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that adds a row to the file, at once."""
    with open(path, "a", encoding="utf-8") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):  # cut off by a kill
            file.write("\n")

        def add(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        yield add
