"""`python -m analysis.benchmarks.peers --out DIR`: makes the runs that are not done yet, then the summary."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from analysis.benchmarks.peers import runs, summary
from analysis.benchmarks.peers.model import AnswerShares
from evo.core.errors import ConfigError, EvoError
from fitness.tasks.task import task_names

TASKS = ("vector_sin", "softmax", "rms_norm", "layer_norm", "cross_entropy", "scatter", "rotary", "gemv_batched")
KILLED_TASK = "vector_sin"  # the cheapest one: what is lost does not depend on the kernel


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.benchmarks.peers", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the runs and the summary; done runs are kept")
    parser.add_argument("--tasks", type=_names(tuple(task_names())), default=TASKS, help="built-in tasks")
    parser.add_argument("--engines", type=_names(tuple(runs.CONTESTANTS)), default=tuple(runs.CONTESTANTS))
    parser.add_argument("--seeds", type=int, default=3, help="0 to N - 1 (default: 3)")
    parser.add_argument("--proposals", type=int, default=16, help="answers of the model in each run (default: 16)")
    parser.add_argument("--gpus", default="none", help="as for `evo serve` (default: none, times are estimates)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument("--python", type=Path, help="of the peers' environment (default: .venv-peers/bin/python)")
    parser.add_argument("--no-kills", action="store_true", help="leave the test of kill -9 out")
    parser.add_argument("--results", type=Path, help="where the summary is written (default: --out)")
    parser.add_argument("--only-summary", action="store_true", help="make no runs")
    given = parser.parse_args(arguments)
    try:
        if not given.only_summary:
            _make(given)
        print(summary.write(given.out, given.results or given.out))
    except EvoError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    return 0


def _make(given: argparse.Namespace) -> None:
    if given.proposals < 2 or given.seeds < 1 or given.jobs < 1:
        raise ConfigError("expected --proposals from 2, --seeds and --jobs from 1")
    python = runs.find_python(given.python)
    out = given.out.absolute()
    summary.keep_settings(out, {"proposals": given.proposals, "gpus": given.gpus})
    with runs.service(out / "service", given.gpus, given.jobs) as url, ThreadPoolExecutor(given.jobs) as pool:
        make = partial(_one, out=out, url=url, python=python)
        for line in pool.map(make, _runs(given)):
            print(line, flush=True)


def _runs(given: argparse.Namespace) -> Iterator[runs.Run]:
    """All runs of a seed before the next seed: first those that are killed, then those of each task."""
    killed = [runs.CONTESTANTS[name] for name in given.engines if name in ("evo", "openevolve", "shinka")]
    for seed in range(given.seeds):
        if not given.no_kills:
            for contestant in [*killed, runs.EVERY_ITERATION]:
                yield runs.Run(contestant, KILLED_TASK, seed, given.proposals, given.proposals // 2)
        for task, name in itertools.product(given.tasks, given.engines):
            yield runs.Run(runs.CONTESTANTS[name], task, seed, given.proposals)


def _one(run: runs.Run, *, out: Path, url: str, python: str) -> str:
    kept = (out / "runs" / run.name / runs.DONE).exists()
    runs.execute(run, out / "runs" / run.name, url, python, AnswerShares())
    return f"{run.name}: {'kept' if kept else 'done'}"


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"expected names among {', '.join(known)}, got {', '.join(unknown)}")
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
