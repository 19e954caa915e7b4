"""Predicts the speedup of settings of genes from the candidates measured so far.

A point is a setting, one coordinate a gene: the logarithm (base 2) of its value.  Genes are distinguished by name, so a
candidate with other genes is a point too, at a fixed distance along those that it lacks.  The prediction is the mean of
a Gaussian process of the logarithm of the speedup: Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, chapter 2.  Speedups are cut off below, because it does not matter how bad the bad ones are.  The covariance is a
sum over single genes plus a product over all of them: Duvenaud, Nickisch and Rasmussen, "Additive Gaussian Processes",
2011.  The sum says that eight warps are good or bad here, whatever else; the product, that points close in all genes
are alike.

Lengths and variances are fixed; docs/suites.md says how they were chosen, and what they are worth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from operators.genes import COMPUTED, get_genes
from operators.rewrites.configs import inlined

Point = Mapping[str, int]  # name of a gene -> its value

MOST = 256  # the last ones that count: fitting takes the third power of their number

_SPAN = 1.0  # of logarithms: a candidate e times slower than the best is as bad as a failure
_LENGTH = 2.0  # a factor of four makes a setting another one.
_LACKING = 1.0  # distance, in lengths, between having a gene and not having it
_SINGLE, _JOINT = 0.02, 0.5  # variances: of a gene's own effect, of all together
_NOISE = 0.05  # variance of what genes do not say: other structure, and the error of measuring
_COMPUTED_LOG2 = -3.0  # the coordinate of COMPUTED: below every number
_DIGITS = 6  # kept of a prediction, so that equal ones are equal with every library of linear algebra
_CONFIG = re.compile(r"\.config\d+")


@dataclass(frozen=True)
class Measured:
    """A candidate that was evaluated.

    candidate: its id; source: with only the chosen one of several autotune configurations, if one was chosen; speedup:
    over the seed, None if the candidate is not ok.
    """

    candidate: str
    source: str
    speedup: float | None

    @cached_property
    def point(self) -> Point:
        return point_of({gene.name: gene.value for gene in get_genes(inlined(self.source))})


def point_of(setting: Mapping[str, int]) -> Point:
    """A setting with its genes named as in other candidates, whichever configuration they are of."""
    return {_CONFIG.sub("", name): value for name, value in setting.items()}


def predicted(measured: Sequence[Measured], settings: Sequence[Mapping[str, int]]) -> list[float]:
    """Logarithm of the speedup of each setting (name of a gene -> value), from at least one measured candidate."""
    known = measured[-MOST:]
    points, wanted = [m.point for m in known], [point_of(s) for s in settings]
    names = sorted({name for point in (*points, *wanted) for name in point})
    at, to = _coordinates(points, names), _coordinates(wanted, names)
    values = _values(known)
    weights = np.linalg.solve(_covariance(at, at) + _NOISE * np.eye(len(at)), values - values.mean())
    return [round(float(v), _DIGITS) for v in values.mean() + _covariance(to, at) @ weights]


def _values(measured: Sequence[Measured]) -> np.ndarray:
    """Logarithms of speedups, (points,); failures are as bad as the worst that counts."""
    logs = [math.log(m.speedup) if m.speedup else None for m in measured]
    floor = max((v for v in logs if v is not None), default=0.0) - _SPAN
    return np.array([floor if v is None else max(v, floor) for v in logs])


def _coordinates(points: Sequence[Point], names: Sequence[str]) -> np.ndarray:
    """(points, genes); NaN for a gene that a point lacks."""
    found = np.full((len(points), len(names)), np.nan)
    column = {name: i for i, name in enumerate(names)}
    for row, point in zip(found, points, strict=True):
        for name, value in point.items():
            row[column[name]] = _COMPUTED_LOG2 if value == COMPUTED else math.log2(value)
    return found


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(rows of a, rows of b)"""
    lacking_a, lacking_b = np.isnan(a)[:, None], np.isnan(b)[None]
    apart = (np.nan_to_num(a)[:, None] - np.nan_to_num(b)[None]) / _LENGTH
    apart = np.where(lacking_a != lacking_b, _LACKING, np.where(lacking_a, 0.0, apart))
    squares = apart**2
    return np.asarray(_SINGLE * np.exp(-squares / 2).sum(-1) + _JOINT * np.exp(-squares.sum(-1) / 2))
