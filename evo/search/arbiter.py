"""Decides whether a single path continues from a child, tries again, or ends: the arbiter of TritonForge.

Li et al., "TritonForge: Profiling-Guided Framework for Automated Triton Kernel Optimization", arXiv:2512.09196.  Here
it is a rule over what was measured, so that a run can be repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from evo.core.records import Build, Fitness, Trial

# The limit of TritonForge's loop.
ROUNDS = 8
# Rounds one after the other without a gain, after which more are not worth their price.
PATIENCE = 3
# A smaller relative gain does not count.  For two estimates, which share their errors, it is the least difference.
GAIN = 0.02
# Share of what a copy (or a matrix product) reaches on the device, from which on there is nothing left to gain.
CEILING = 0.95


class Decision(enum.StrEnum):
    ACCEPT = "accept"  # the child is the next parent
    CONTINUE = "continue"  # another try from the same parent
    FINISH = "finish"


@dataclass
class Arbiter:
    """Decides round after round.  A round is one child and the repairs of it."""

    rounds: int = 0
    idle: int = 0  # rounds without a gain, one after the other

    def decide(self, parent: Trial, child: Trial) -> Decision:
        """Returns what to do after a round that started at `parent` and ended with `child`."""
        self.rounds += 1
        faster = _faster(parent, child)
        accepted = faster or _leaner(parent, child)
        self.idle = 0 if faster else self.idle + 1
        if self.rounds >= ROUNDS or self.idle >= PATIENCE or _at_ceiling(child if accepted else parent):
            return Decision.FINISH
        return Decision.ACCEPT if accepted else Decision.CONTINUE


def _leaner(parent: Trial, child: Trial) -> bool:
    """Returns whether the child is as fast with fewer resources."""
    if child.fitness is None or parent.fitness is None or _is_faster(child.fitness, parent.fitness):
        return False
    as_fast = child.fitness.speedup >= parent.fitness.speedup * (1 - GAIN)
    return as_fast and _needs(child.evaluation.builds) < _needs(parent.evaluation.builds)


def _faster(parent: Trial, child: Trial) -> bool:
    return parent.fitness is not None and child.fitness is not None and _is_faster(parent.fitness, child.fitness)


def _is_faster(than: Fitness, this: Fitness) -> bool:
    """Returns whether `this` is faster by more than GAIN; measured intervals must also be apart."""
    apart = this.estimated or this.ci95[0] > than.ci95[1]
    return apart and this.speedup > than.speedup * (1 + GAIN)


def _needs(builds: Sequence[Build]) -> tuple[float, ...]:
    """Returns the limits on resident programs, of the worst kernel: spills, then (less) occupancy."""
    spills = max((b.spill_bytes for b in builds), default=0)
    return spills, -min((b.occupancy for b in builds), default=0.0)


def _at_ceiling(trial: Trial) -> bool:
    """Returns whether every measured case runs at the limit of the device."""
    shares = [max(t.terms.get("of_copy_rate", 0.0), t.terms.get("of_matmul_rate", 0.0))
              for t in trial.evaluation.timings if not t.estimated]  # fmt: skip
    return bool(shares) and min(shares) >= CEILING
