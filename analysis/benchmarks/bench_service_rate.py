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
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.benchmarks.bench_gpu import SOFTMAX
from evo.api import Evaluator
from evo.core.errors import ServiceError
from evo.core.records import Verdict
from evo.service.client import Client

TASK = "softmax"
IN_FLIGHT = (16, 64)
GOAL = 0.95  # of the bare evaluator's rate


def sources() -> Iterator[str]:
    """Right kernels without end, no two with the same machine code."""
    for number in itertools.count():
        yield SOFTMAX.format(padding=-1e30 - 1e24 * number, warps=(8, 16, 32)[number % 3])


@contextmanager
def service(workers: int) -> Iterator[str]:
    """Runs `evo serve` in a process and a folder of its own, and yields its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="evo-bench-") as folder:
        command = [sys.executable, "-m", "evo", "serve", "--port", str(port), "--workers", str(workers)]
        with subprocess.Popen([*command, "--dir", str(Path(folder, "state"))], stdout=sys.stderr) as process:
            try:
                _wait_for(port, process)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise ServiceError(f"expected a service that answers, got one that left with {process.returncode}")


def rate(evaluator: Any, fresh: Iterable[str], warm_up: int, candidates: int) -> float:
    """Evaluations a second of the next `candidates` of `fresh`, after a warm-up.  Raises ServiceError if one fails."""
    fresh = iter(fresh)
    seen = Counter(e.verdict for e in evaluator.evaluate_many(list(itertools.islice(fresh, warm_up))))
    chosen = list(itertools.islice(fresh, candidates))
    begin = time.perf_counter()
    seen.update(e.verdict for e in evaluator.evaluate_many(chosen))
    seconds = time.perf_counter() - begin
    if set(seen) != {Verdict.OK}:
        raise ServiceError(f"expected candidates that are ok, got {dict(seen)}")
    return candidates / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=64, help="a measurement")
    parser.add_argument("--workers", type=int, default=12, help="evaluations at once, bare and of the service")
    arguments = parser.parse_args()
    fresh, sizes = sources(), (arguments.workers, arguments.candidates)

    def bare() -> float:
        with Evaluator(TASK, workers=arguments.workers, progress=True) as evaluator:
            return rate(evaluator, fresh, *sizes)

    before = bare()
    served = {}
    for in_flight in IN_FLIGHT:
        with service(arguments.workers) as url, Client(url, TASK, in_flight=in_flight) as client:
            served[in_flight] = rate(client, fresh, *sizes)
    both = (before, bare())
    print(f"bare evaluator: {both[0]:.2f} and {both[1]:.2f} evaluations a second")
    for in_flight, found in served.items():
        ratio = found / statistics.fmean(both)
        print(f"service, {in_flight} in flight: {found:.2f} a second, {ratio:.3f} of it (goal {GOAL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
