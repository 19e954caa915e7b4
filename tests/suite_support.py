"""Kernels of a suite: searched ones, and ones timed beside PyTorch."""

from __future__ import annotations

from analysis.outcomes import Outcome
from analysis.suite import SuiteBaseline, SuiteKernel


def outcome(name: str, best: float, *, estimated: bool = False, right: int = 3, wrong: int = 1) -> Outcome:
    verdicts = {"ok": right + 1, "wrong": wrong}  # the seed is ok too
    interval = (best * 0.99, best * 1.01) if best > 1 else (1.0, 1.0)
    curve = (1.0, (1 + best) / 2, best, best)
    gains = sum(b >= 1.05 for b in curve[1:3])
    return Outcome(
        "full",
        name,
        0,
        4,
        curve,
        interval,
        estimated,
        verdicts,
        2.0,
        gpu_spent=0.5,
        successes=gains,
        certified=best - 0.5 if best > 2 else 1.0,
    )


KERNELS = [
    SuiteKernel("a", 10, outcome=outcome("a", 1.0)),
    SuiteKernel("b", 20, outcome=outcome("b", 1.04)),
    SuiteKernel("c", 30, outcome=outcome("c", 1.5)),
    SuiteKernel("d", 40, outcome=outcome("d", 4.0)),
    SuiteKernel("e", 50, reason="record: unsupported: a | b\nmore"),
    SuiteKernel("f", 60),
]


def beside(us: float, seed_us: float, error: str = "") -> SuiteBaseline:
    ratio = us / seed_us if not error else 0.0
    return SuiteBaseline(us, seed_us, ratio, (ratio * 0.99, ratio * 1.01), error)


TIMED = [
    SuiteKernel(
        "a", 10, outcome=outcome("a", 1.5), baselines={"eager": beside(100, 50), "torch.compile": beside(35, 50)}
    ),
    SuiteKernel(
        "b", 10, outcome=outcome("b", 1.0), baselines={"eager": beside(30, 60), "torch.compile": beside(0, 0, "No")}
    ),
    SuiteKernel("c", 10, reason="no seed kernel"),
]
