"""Measures how well a run's measurements predict which change of parameters pays, from stores and without a GPU.

    python -m analysis.benchmarks.bench_surrogate RUN_DIR ...

`operators.surrogate` ranks every candidate that `params` moved at random among 32 other random neighbours of its
parent, by the measurements before it.  Prints, for all of them and for those ranked highest: their number, the share
that made the best of their run at least 3 % faster, and the share that failed.  A ranking by chance has the same shares
everywhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from evo.core.records import Trial
from evo.search.scheduler import Measurements
from evo.storage.best import best_source
from evo.storage.queries import RunReader
from operators.genes import get_genes
from operators.params import FEWEST, POOL, named, neighbours
from operators.rewrites.configs import inlined
from operators.surrogate import Measured, predicted

PAYS = 1.03  # over the best so far
TOP = (1.0, 0.5, 0.25, 0.1, 0.05)  # shares of the ranking


@dataclass(frozen=True)
class Ranked:
    """A candidate of `params`.  place: share of the neighbours that were predicted to be better, 0..1."""

    place: float
    pays: bool
    failed: bool


def ranked(folder: Path) -> list[Ranked]:
    """The candidates of one run; none if measurements chose them."""
    with RunReader(folder) as run:
        return [] if run.info.config.surrogate else list(_ranked(run.trials()))


def _ranked(trials: Iterator[Trial]) -> Iterator[Ranked]:
    sources: dict[int, str] = {}
    known, best = Measurements(), 1.0
    for trial in trials:
        speedup = trial.fitness.speedup if trial.fitness else None
        if trial.proposal.operator == "params" and len(known.last) >= FEWEST:
            place = _place(known.last, sources[trial.proposal.parents[0]], trial)
            if place is not None:
                yield Ranked(place, speedup is not None and speedup > PAYS * best, speedup is None)
        sources[trial.index] = inlined(best_source(trial))
        best = max(best, speedup or 0.0)
        known.add(trial)


def _place(known: tuple[Measured, ...], parent: str, trial: Trial) -> float | None:
    """The rank; None if it cannot be compared: the parent has other genes, or hardly any neighbours."""
    genes = get_genes(parent)
    own = {gene.name: gene.value for gene in get_genes(trial.proposal.candidate.source)}
    if own.keys() != {gene.name for gene in genes}:
        return None
    start, mine = tuple(g.value for g in genes), tuple(own[g.name] for g in genes)
    others = dict.fromkeys(neighbours(genes, start, random.Random(trial.proposal.seed), POOL))
    settings = [mine, *(s for s in others if s not in (start, mine))]
    if len(settings) < POOL // 4:
        return None
    first, *rest = predicted(known, [named(genes, s) for s in settings])
    return sum(p > first for p in rest) / len(rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(itertools.chain.from_iterable(pool.map(ranked, parser.parse_args().runs)))
    for top in TOP:
        some = [r for r in found if r.place <= top]
        shares = {
            name: round(sum(getattr(r, name) for r in some) / len(some), 4) if some else None
            for name in ("pays", "failed")
        }
        print(json.dumps({"of_the_ranking": top, "candidates": len(some)} | shares))


if __name__ == "__main__":
    main()
