"""A run in a process of its own, to be killed: `python -m tests.engine_run DIR BUDGET WORKERS SLEEP_S`.

Starts the run in DIR or goes on with the one that is there.  Prints "searching" after its second trial (all is imported
then), "stopping" if a signal asks it to stop, and at last how the run ended.  Exits with 130 if it was interrupted.
Evaluated candidates are logged to DIR.log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from evo.core.records import Trial
from evo.search.interrupt import Interrupt
from evo.storage.folders import FILE
from tests.engine_support import SlowEvaluator, create, resume, search


class Announce:
    """An Observer that says when the search is under way."""

    live = 0

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        self.live += not replayed
        if self.live == 2 and not replayed:
            print("searching", flush=True)


def stopping() -> None:
    os.write(1, b"stopping\n")  # a signal handler must not print: the program may be printing


def main() -> int:
    folder, budget, workers, sleep_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    evaluator = SlowEvaluator(sleep_s, folder.with_suffix(".log"))
    new = not (folder / FILE).exists()
    with (
        create(folder, budget=budget, workers=workers) if new else resume(folder) as store,
        Interrupt(stopping) as stop,
    ):
        try:
            outcome = search(store, evaluator, stop=stop, observers=[Announce()])
        except KeyboardInterrupt:
            os._exit(131)
    print(outcome.reason, outcome.spent, flush=True)
    return 130 if outcome.reason == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
