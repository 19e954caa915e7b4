"""Keeps the best candidate of a search and the best of every niche (MAP-Elites, Mouret & Clune 2015).

A niche is a bottleneck (the largest term of the time model) with a class of resources (registers, shared memory,
warps): the ways in which two kernels of the same speed can differ in what would make them faster.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evo.core.records import Evaluation, Trial

# Upper ends of the classes.  Registers per thread: with 65536 a multiprocessor and 64 warps, 32 still allows full
# occupancy, 64 half, 128 a quarter, 255 is the most a thread can have.  Shared memory per program in bytes: none, what
# leaves 14, 4 and 2 programs on a Hopper multiprocessor (228 KiB), the rest.
_REGISTERS = (32, 64, 128)
_SHARED = (0, 16 << 10, 56 << 10, 113 << 10)


class Niche(NamedTuple):
    """`registers` and `shared` are classes (0 is the smallest), `warps` is a number of warps."""

    bottleneck: str
    registers: int
    shared: int
    warps: int


@dataclass(frozen=True)
class Elite:
    """An evaluated candidate as the search keeps it: far smaller than its trial."""

    index: int
    source: str
    speedup: float
    per_case: Mapping[str, float]
    occupancy: float  # of its worst kernel, 0..1
    niche: Niche
    frozen: str = ""  # the source with only its chosen autotune configurations, if there were others


def elite_of(trial: Trial) -> Elite | None:
    """Returns `trial` as an elite, None if it has no fitness, or is a call of PyTorch and no kernel."""
    if trial.fitness is None or not trial.proposal.is_kernel:
        return None
    return Elite(
        index=trial.index,
        source=trial.proposal.candidate.source,
        speedup=trial.fitness.speedup,
        per_case=dict(sorted(trial.fitness.per_case.items())),
        occupancy=min(build.occupancy for build in trial.evaluation.builds),
        niche=niche_of(trial.evaluation),
        frozen=trial.evaluation.frozen_source,
    )


def niche_of(evaluation: Evaluation) -> Niche:
    """The niche of an evaluation with builds; a candidate with several kernels counts as its hungriest one."""
    builds = evaluation.builds
    return Niche(
        bottleneck=bottleneck(evaluation),
        registers=bisect_left(_REGISTERS, max(b.registers for b in builds)),
        shared=bisect_left(_SHARED, max(b.shared_bytes for b in builds)),
        warps=max(b.num_warps for b in builds),
    )


def bottleneck(evaluation: Evaluation) -> str:
    """The term with the largest share of the modelled time, averaged over the cases; "unknown" without a model."""
    shares: dict[str, float] = {}
    for timing in evaluation.timings:
        # Measured timings have terms too, which are no parts of the time.
        terms = timing.terms if timing.estimated else {}
        # fsum: the order of the terms (which storing does not keep) must not change the last bit.
        total = math.fsum(terms.values())
        if total > 0:
            for name, term in terms.items():
                shares[name] = shares.get(name, 0.0) + term / total
    return max(shares, key=lambda name: (shares[name], name)) if shares else "unknown"


class Archive:
    """The best trial, and one elite a niche.  Bounded by the number of niches."""

    def __init__(self) -> None:
        self.best: Trial | None = None
        self.seed: Trial | None = None  # trial 0: what the others are compared with
        self.niches: dict[Niche, Elite] = {}

    def add(self, trial: Trial) -> Elite | None:
        """Files `trial` and returns its elite, None if it can be no parent.  Ties go to the earlier trial."""
        if trial.index == 0:
            self.seed = trial
        elite = elite_of(trial)
        if elite is None:
            return None
        if self.best is None or elite.speedup > _speedup(self.best):
            self.best = trial
        holder = self.niches.get(elite.niche)
        if holder is None or elite.speedup > holder.speedup:
            self.niches[elite.niche] = elite
        return elite

    def elites(self) -> list[Elite]:
        """One elite a niche, in the order the niches were found."""
        return list(self.niches.values())


def _speedup(trial: Trial) -> float:
    assert trial.fitness is not None  # only trials with a fitness become the best
    return trial.fitness.speedup
