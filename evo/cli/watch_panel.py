"""Draws the panel of `evo watch` from the store of a run, and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from evo.core.records import Trial
from evo.core.text import quoted
from evo.search.progress import Progress
from evo.search.termination import ended
from evo.storage.store import RunReader, is_written

if TYPE_CHECKING:
    from rich.console import RenderableType

POLL_S = 0.5
RECENT = 10  # trials listed


class RunPanel(Progress):
    """The display of a run with its latest candidates."""

    def __init__(self, run: RunReader, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run.info.config, console, clock)
        self._run = run
        # A thread of its own draws `panel` and must not use the store, so these values are replaced as a whole.
        self._recent: list[Trial] = []
        self._pending = 0
        self._read = 0
        self.state = "nothing happened yet"

    def poll(self) -> bool:
        """Takes in new trials; returns whether the run goes on."""
        # Before reading: so the last records of an ending process are read, too.
        writing = is_written(self._run.folder)
        text = ended(self._run)
        first = self._read == 0
        for trial in self._run.trials(self._read):
            self._read += 1
            self._recent = [*self._recent, trial][-RECENT:]
            self.absorbed(trial, replayed=first)
        self._pending = len(self._run.pending())
        self.state = f"ended: {text}" if text else "running"
        if not text and not writing:
            self.state = f"no process on this machine runs it; go on by `evo resume {quoted(self._run.folder)}`"
        return writing and not text

    def panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        for trial in reversed(self._recent):
            outcome = str(trial.fitness) if trial.fitness else trial.evaluation.message.partition("\n")[0]
            cells = (str(trial.index), trial.proposal.operator, trial.evaluation.verdict.value, outcome)
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
        return Group(super().panel(), Text(self.state_text()), Text(), table)

    def state_text(self) -> str:
        return f"{self.state}; {self._pending} pending" if self._pending else self.state


def watch(run: RunReader, console: Console, *, once: bool = False, sleep: Callable[[float], None] = time.sleep) -> None:
    """Shows `run` until it ends; `once`: as it is now."""
    view = RunPanel(run, console)
    going = view.poll()
    if once:
        console.print(view.panel())
        return
    with view:
        while going:
            sleep(POLL_S)
            going = view.poll()
    if not console.is_terminal:  # the panel says it already
        console.print(Text(f"{view.best_text()}\n{view.state_text()}"), soft_wrap=True)
