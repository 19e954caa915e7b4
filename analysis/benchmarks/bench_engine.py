"""Measures the cost of the engine itself: `python -m analysis.benchmarks.bench_engine [--trials N]`.

Evaluator and operators are instant (`instant.py`), so all time is the engine's: choosing parents, hashing and storing
sources, SQLite transactions, populations, the way through the worker thread.  Prints milliseconds a trial of the first
and the last thousand, resident memory above that of the imports, and the cost of a replay, each with its limit; exit
code 1 if one exceeds it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from analysis.benchmarks.instant import OPERATORS, SEED_SOURCE, InstantEvaluator, score
from evo.core.records import Trial
from evo.core.settings import RunConfig
from evo.search.engine import Engine
from evo.storage.queries import RunInfo
from evo.storage.store import Store

MEAN_MS_LIMIT = 2.0  # a trial
GROWTH_LIMIT = 1.25  # CPU time of the last thousand over the first: equal runs differ by less.
MEMORY_MB_LIMIT = 300.0


class Clock:
    """An Observer that notes when trials were finished, by the clock on the wall and in CPU time of this process."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


def milliseconds(stamps: list[float]) -> list[float]:
    """Returns the milliseconds of each trial, from stamps in seconds."""
    return [1e3 * (b - a) for a, b in itertools.pairwise(stamps)]


def resident_mb() -> float:
    """Memory of this process in RAM, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def run(folder: Path, config: RunConfig) -> Clock:
    """Returns the times of a run in `folder`; a run that exists is resumed."""
    clock = Clock()
    with _open(folder, config) as store:
        evaluator = InstantEvaluator()
        Engine(store, evaluator.prepare(), SEED_SOURCE, evaluator, score, OPERATORS, [clock]).run()
    return clock


def _open(folder: Path, config: RunConfig) -> Store:
    if (folder / "run.sqlite").exists():
        return Store.resume(folder, task_hash="benchmark", versions={})
    return Store.create(folder, RunInfo(config, "benchmark", {}, {}))


def _import_all() -> None:
    """Imports what the engine imports late, so that memory is counted above it."""
    from deap import base, tools  # noqa: F401


def _row(name: str, milliseconds: list[float]) -> str:
    cuts = statistics.quantiles(milliseconds, n=100)
    mean = statistics.fmean(milliseconds)
    return f"{name:<16}{mean:8.3f}{cuts[49]:8.3f}{cuts[89]:8.3f}{cuts[98]:8.3f}{max(milliseconds):9.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=10_000, help="at least 2000")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.trials < 2000:
        parser.error(f"--trials: expected at least 2000 (a first and a last thousand), got {arguments.trials}")
    config = RunConfig("benchmark", tuple(OPERATORS), arguments.trials, workers=arguments.workers)
    _import_all()
    before = resident_mb()
    with tempfile.TemporaryDirectory() as folder:
        clock = run(Path(folder), config)
        above = resident_mb() - before
        size_mb = sum(f.stat().st_size for f in Path(folder).iterdir()) / 1e6
        replay = milliseconds(run(Path(folder), config).wall)
    each, cpu = milliseconds(clock.wall), milliseconds(clock.cpu)
    growth = statistics.fmean(cpu[-1000:]) / statistics.fmean(cpu[:1000])
    print(f"{len(each)} trials, {config.strategy}, {config.workers} worker(s)")
    print(f"{'ms a trial':<16}{'mean':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>9}")
    parts = {"first thousand": each[:1000], "last thousand": each[-1000:], "all": each, "replay": replay}
    for name, part in parts.items():
        print(_row(name, part))
    limits = [
        ("mean ms a trial", statistics.fmean(each), MEAN_MS_LIMIT),
        ("CPU time, last / first thousand", growth, GROWTH_LIMIT),
        ("resident MB above imports", above, MEMORY_MB_LIMIT),
    ]
    for name, value, limit in limits:
        print(f"{name}: {value:.3g} (limit {limit:g}) {'ok' if value <= limit else 'BROKEN'}")
    print(f"store: {size_mb:.0f} MB, {1e6 * size_mb / len(each):.0f} bytes a trial")
    return 0 if all(value <= limit for _, value, limit in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
