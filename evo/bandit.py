"""Which operator next: Thompson sampling over what they achieved lately."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

# After 1 / (1 - DECAY) = 50 trials outcomes weigh 1/e: an operator that helped the seed need not help its offspring.
DECAY = 0.98
# Below this the model's and the timer's noise cannot be told from an improvement.
NOISE = 0.01


class Bandit:
    """A Beta posterior an arm, discounted (Raj & Kalyani 2017), with rewards in 0..1 counted as partial successes."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._counts = dict.fromkeys(arms, (0.0, 0.0))  # discounted successes, failures

    def choose(self, rng: random.Random) -> str:
        """The arm whose sampled chance of success is highest."""
        draws = {arm: rng.betavariate(1 + won, 1 + lost) for arm, (won, lost) in self._counts.items()}
        return max(draws, key=lambda arm: draws[arm])

    def credit(self, arm: str, reward: float) -> None:
        """Records an outcome; arms that are not choices (the seed) earn nothing."""
        if arm not in self._counts:
            return
        for name, (won, lost) in self._counts.items():
            self._counts[name] = (won * DECAY, lost * DECAY)
        won, lost = self._counts[arm]
        self._counts[arm] = (won + reward, lost + 1 - reward)

    def means(self) -> Mapping[str, float]:
        """Expected reward of each arm."""
        return {arm: (1 + won) / (2 + won + lost) for arm, (won, lost) in self._counts.items()}


def reward(speedup: float | None, parent: float) -> float:
    """What a child is worth to the operator that made it: 0 without improvement, else 0.5 (any) to 1 (twice as fast).

    `speedup` is the child's over the seed (None: it has none), `parent` that of its better parent.
    """
    if speedup is None or speedup <= parent * (1 + NOISE):
        return 0.0
    return 0.5 + 0.5 * min(1.0, math.log2(speedup / parent))
