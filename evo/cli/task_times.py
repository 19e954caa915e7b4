"""`evo tasks time`: times kernels beside PyTorch and the library's kernel, and says what is attainable."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from analysis.baselines import BaselineRow
    from fitness.suites.baselines import TimedKernel
    from fitness.tasks.task import Task


def add(subcommands: Any) -> None:
    times = subcommands.add_parser(
        "time",
        help="time seed and best kernels beside PyTorch, torch.compile and the library",
        description="Times the seed kernel of each task, and the best one of given runs, beside PyTorch (eager, and by "
        "torch.compile) and the kernel of a library that the task names in library.py, each by the paired benchmark. "
        "Prints a table with shares of the attainable speed. Needs a GPU: these times are never estimated. "
        "Exit code 0: all were timed; 1: not all; 2: misuse.",
    )
    times.add_argument(
        "tasks", nargs="*", metavar="TASK", help="built-in names or folders (default: all built-in tasks)"
    )
    times.add_argument(
        "--best",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a run, or a folder of runs: their best kernels are timed too; may be repeated",
    )
    times.add_argument("--out", type=Path, metavar="FILE.json", help="also write the times there (docs/tasks.md)")
    times.add_argument("--workers", type=int, metavar="W", help="kernels compiled at once (default: as the CPUs take)")
    times.add_argument("--target", default="sm_90", help="GPU that measures (default: sm_90)")
    times.set_defaults(command=_time)


def _time(arguments: argparse.Namespace) -> int:
    from analysis import baselines
    from evo.api import load_task
    from evo.core.versions import versions
    from evo.search import evaluators
    from evo.search.options import check_workers
    from fitness.frontend.target import get_target
    from fitness.tasks.task import task_names

    check_workers(arguments.workers)
    target = get_target(arguments.target)
    tasks = [load_task(name) for name in arguments.tasks or task_names()]
    best = _best(arguments.best, tasks)
    kernels = [(task, task.seed_source) for task in tasks if task.seed_source is not None]
    kernels += [(task, best[task.name][1]) for task in tasks if task.name in best]
    if not kernels:
        raise ConfigError(
            f"evo tasks time: expected a task with kernel.py, or --best DIR with a kernel of one, got "
            f"{', '.join(task.name for task in tasks)} without kernels; name such a task, or a folder of runs"
        )
    if problem := evaluators.find_gpus(target.name).problem:
        raise ConfigError(
            f"evo tasks time: expected a GPU that measures for {target.name}, but {problem}; PyTorch, libraries and "
            f"kernels are timed beside each other, never estimated: run it on a GPU"
        )
    from fitness.suites.baselines import measure

    rows: list[BaselineRow] = []
    gpu: dict[str, Any] = {}
    for timed in measure(kernels, target, evaluators.workers(arguments.workers)):
        gpu = dict(timed.gpu)
        run = "" if timed.source == timed.task.seed_source else str(best[timed.task.name][0])
        rows += _rows(timed, run)
    rows.sort(key=lambda row: [task.name for task in tasks].index(row.task))
    common.say(baselines.table(rows))
    common.say(f"{gpu['name']}: copying {gpu['copy_bytes_per_s'] / 1e12:.2f} TB/s, "
               f"bfloat16 matrix products {gpu['matmul_flops'] / 1e12:.0f} TFLOP/s")  # fmt: skip
    if arguments.out is not None:
        baselines.save(arguments.out, rows, gpu, versions())
        common.say(f"wrote {arguments.out}")
    return common.EXIT_NOT_OK if any(row.error for row in rows) else 0


def _best(folders: Sequence[Path], tasks: Sequence[Task]) -> dict[str, tuple[Path, str]]:
    """Returns the run with the best kernel of each task, and that kernel's source.

    Raises ConfigError if a folder has no kernel for one of the tasks.
    """
    from evo.storage.folders import runs_in

    found: dict[str, tuple[float, Path, str]] = {}
    hashes = {task.hash: task.name for task in tasks}
    for folder in folders:
        runs = [(run, *best) for run in runs_in(folder) for best in _best_of(run)]
        known = [(run, speedup, source, hashes[task]) for run, speedup, source, task in runs if task in hashes]
        if not known:
            raise ConfigError(
                f"--best: expected a run of {', '.join(task.name for task in tasks)} with a kernel faster than its "
                f"baseline in {folder}, found none of these tasks as they are now; name another folder, or leave it out"
            )
        for run, speedup, source, task in known:
            if task not in found or speedup > found[task][0]:
                found[task] = speedup, run, source
    return {task: (run, source) for task, (_, run, source) in found.items()}


def _best_of(run: Path) -> Iterator[tuple[float, str, str]]:
    """Yields speedup and source of the best kernel of a run, and the hash of its task; nothing if that is the seed."""
    from evo.result import Result
    from evo.storage.queries import RunReader

    best = Result(run).best
    if best is not None and best.trial:
        with RunReader(run) as reader:
            yield best.speedup, best.source, reader.info.task_hash


def _rows(timed: TimedKernel, run: str) -> list[BaselineRow]:
    from analysis.baselines import BEST, SEED, BaselineRow

    return [
        BaselineRow(
            task=timed.task.name,
            task_hash=timed.task.hash,
            case=b.case,
            attainable_us=timed.attainable_us[b.case],
            kernel=BEST if run else SEED,
            run=run,
            kernel_us=b.seed_us,
            baseline=b.name,
            us=b.us,
            ratio=b.ratio,
            ci_low=b.ci95[0],
            ci_high=b.ci95[1],
            error=b.error,
        )
        for b in timed.baselines
    ]
