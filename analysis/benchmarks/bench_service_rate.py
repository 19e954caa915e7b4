"""Measures evaluations a second through the service beside the bare evaluator: real kernels, one run.

    python -m analysis.benchmarks.bench_service_rate [--candidates 64] [--workers 12]

All candidates are right kernels of the task softmax and differ in their machine code.  They are evaluated by
`evo.Evaluator`, then by `evo serve` with 16 and with 64 requests in flight, then by `evo.Evaluator` again, each time
others.  A warm-up of `--workers` candidates comes first each time and does not count.  Printed are the rates, and those
of the service over the mean of the bare ones.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.benchmarks.bench_gpu import softmax_variant
from analysis.benchmarks.bench_service import ServerProcess
from evo.api import Evaluator
from evo.core.records import Verdict
from evo.service.client import Client

TASK = "softmax"
IN_FLIGHT = (16, 64)
GOAL = 0.95  # of the bare evaluator's rate


class RealService(ServerProcess):
    """`evo serve` in a process of its own."""

    def module(self) -> tuple[str, ...]:
        return "evo", "serve", "--dir"


def rate(evaluator: Any, fresh: Iterator[str], warm_up: int, candidates: int) -> float:
    """Evaluations a second of the next `candidates` of `fresh`, after a warm-up.  Raises SystemExit if one fails."""
    seen = Counter(e.verdict for e in evaluator.evaluate_many(list(itertools.islice(fresh, warm_up))))
    chosen = list(itertools.islice(fresh, candidates))
    begin = time.perf_counter()
    seen.update(e.verdict for e in evaluator.evaluate_many(chosen))
    seconds = time.perf_counter() - begin
    if set(seen) != {Verdict.OK}:
        raise SystemExit(f"expected candidates that are ok, got {dict(seen)}")
    return candidates / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=64, help="a measurement")
    parser.add_argument("--workers", type=int, default=12, help="evaluations at once, bare and of the service")
    arguments = parser.parse_args()
    fresh, sizes = map(softmax_variant, itertools.count()), (arguments.workers, arguments.candidates)

    def bare() -> float:
        with Evaluator(TASK, workers=arguments.workers, progress=True) as evaluator:
            return rate(evaluator, fresh, *sizes)

    before = bare()
    served = {}
    for in_flight in IN_FLIGHT:
        with (
            tempfile.TemporaryDirectory(prefix="evo-bench-") as folder,
            RealService(Path(folder), workers=arguments.workers) as server,
            Client(server.url, TASK, in_flight=in_flight) as client,
        ):
            served[in_flight] = rate(client, fresh, *sizes)
    both = (before, bare())
    print(f"bare evaluator: {both[0]:.2f} and {both[1]:.2f} evaluations a second")
    for in_flight, found in served.items():
        ratio = found / statistics.fmean(both)
        print(f"service, {in_flight} in flight: {found:.2f} a second, {ratio:.3f} of it (goal {GOAL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
