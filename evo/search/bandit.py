"""Chooses the next operator by Thompson sampling over recent results."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

# After 1 / (1 - DECAY) = 50 trials outcomes weigh 1/e: an operator that helped the seed need not help its offspring.
DECAY = 0.98
# Below this, an improvement cannot be distinguished from the noise of the model and the timer.
NOISE = 0.01


class Bandit:
    """A Beta posterior an arm, discounted (Raj & Kalyani 2017), with rewards in 0..1 counted as partial successes.

    Arms that cost more have to achieve more: what counts is success by cost (as in Thompson sampling with a budget, Xia
    et al. 2015).  A trial without a model costs 1.
    """

    def __init__(self, arms: Sequence[str]) -> None:
        self._counts = dict.fromkeys(arms, (0.0, 0.0))  # discounted successes, failures
        self._costs = dict.fromkeys(arms, 0.0)  # discounted sums

    def choose(self, rng: random.Random, among: Sequence[str] | None = None) -> str:
        """Returns the arm with the highest sampled chance of success by cost."""
        arms = self._counts if among is None else among
        draws = {arm: rng.betavariate(*(1 + n for n in self._counts[arm])) / self.cost(arm) for arm in arms}
        return max(draws, key=lambda arm: draws[arm])

    def credit(self, arm: str, reward: float, cost: float = 1.0) -> None:
        """Records an outcome; arms that are not choices (the seed) earn nothing."""
        if arm not in self._counts:
            return
        for name, (won, lost) in self._counts.items():
            self._counts[name] = (won * DECAY, lost * DECAY)
            self._costs[name] *= DECAY
        won, lost = self._counts[arm]
        self._counts[arm] = (won + reward, lost + 1 - reward)
        self._costs[arm] += cost

    def cost(self, arm: str) -> float:
        """Returns the mean cost of a trial of `arm`; 1, the least, if it was not tried yet."""
        tries = sum(self._counts[arm])
        return self._costs[arm] / tries if tries > 0 else 1.0

    def means(self) -> Mapping[str, float]:
        """Returns the expected reward of each arm."""
        return {arm: (1 + won) / (2 + won + lost) for arm, (won, lost) in self._counts.items()}


def reward(speedup: float | None, parent: float) -> float:
    """Returns the reward of the operator that made a child: 0 without improvement, else 0.5 (any) to 1 (twice as fast).

    `speedup` is the child's over the seed (None: it has none), `parent` that of its better parent.
    """
    if speedup is None or speedup <= parent * (1 + NOISE):
        return 0.0
    return 0.5 + 0.5 * min(1.0, math.log2(speedup / parent))
