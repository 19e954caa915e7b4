"""A strategy of your own: simulated annealing (Kirkpatrick et al. 1983).

    python -m evo run vector_sin --budget 6 --gpus none --plugin examples/own_strategy.py --strategy annealing

does the same as this file run as a script.  The search follows one path.  A slower candidate may become the next
parent; how likely that is falls with the temperature, which falls with every trial.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import evo
from evo.search.strategies import Strategy

if TYPE_CHECKING:
    from evo.core.records import Trial
    from evo.core.settings import RunConfig
    from evo.search.archive import Archive, Elite


@evo.register_strategy
class Annealing(Strategy):
    """See `evo.search.strategies.Strategy` for what a strategy gets and what it may keep."""

    name = "annealing"
    operators = ("params", "rewrite")  # if the user names none

    def __init__(self, temperature: float = 0.2, cooling: float = 0.95) -> None:
        """temperature: at the start; at 0.2 a candidate that is a fifth slower is accepted in one of three cases.

        cooling: what every trial multiplies the temperature by.
        """
        self.temperature, self.cooling = temperature, cooling

    def start(self, config: RunConfig, archive: Archive) -> None:
        # Not the budget: it may be another one when the run goes on, and the same trials must lead to the same path.
        self._seed = config.seed
        self._trials = 0
        self._path: list[Elite] = []  # the present candidate, then the one before it

    def tell(self, trial: Trial, elite: Elite | None, reward: float) -> None:
        self._trials += 1
        if elite is not None and (not self._path or self._accepts(elite)):
            self._path = [elite, *self._path[:1]]

    def _accepts(self, elite: Elite) -> bool:
        gain = math.log(elite.speedup / self._path[0].speedup)
        if gain >= 0:
            return True
        temperature = self.temperature * self.cooling**self._trials
        # A choice in `tell` needs a generator of its own, which is the same again after a restart.
        return random.Random(f"{self._seed}/annealing/{elite.index}").random() < math.exp(gain / temperature)

    def parents(self, island: int, count: int, rng: random.Random, *, wide: bool) -> Sequence[Elite]:
        return self._path[:count]


if __name__ == "__main__":
    from evo.cli.main import main

    options = ["--budget", "6", "--gpus", "none", "--strategy", "annealing"]
    sys.exit(main(["run", "vector_sin", *options, *sys.argv[1:]]))
