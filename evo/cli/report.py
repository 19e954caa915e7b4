"""`evo report`: writes one HTML file about runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError, EvoError
from evo.core.records import GPU_FACTS
from evo.storage.folders import check_once, run_folder, runs_in

if TYPE_CHECKING:
    from analysis.report import Bounds
    from evo.storage.store import RunInfo

DEFAULT_OUT = Path("report.html")


def add(commands: Any) -> None:
    report = commands.add_parser("report", help="write one HTML file about runs, finished or not")
    report.add_argument("folders", nargs="+", type=run_folder, metavar="DIR", help="the folder of a run, or of many")
    report.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FILE", help=f"(default: {DEFAULT_OUT})")
    report.set_defaults(command=_report)


def _report(arguments: argparse.Namespace) -> int:
    from analysis.report import write_report
    from evo.storage.store import RunReader

    bounds = []
    runs = [run for folder in arguments.folders for run in runs_in(folder)]
    check_once(runs)
    for folder in runs:
        with RunReader(folder) as run:
            bounds.append(_bounds(run.info))
    write_report(runs, arguments.out, bounds)
    common.say(f"wrote {arguments.out}")
    return 0


def _bounds(info: RunInfo) -> Bounds:
    """Returns the work of the task's cases and the ceilings: measured ones if the run was, else the target's peaks."""
    from analysis.report import Bounds
    from evo.api import load_task
    from fitness.estimate.attainable import bytes_per_s, flops_per_s
    from fitness.frontend.target import from_spec
    from fitness.tasks.task import ChangedTaskError

    try:
        task = load_task(info.config.task, expected=info.task_hash)
    except ChangedTaskError:
        return Bounds(problem="the task was changed since the run started")
    except EvoError as error:
        return Bounds(problem=f"the task is not to be had here: {error}")
    if task.flops is None or task.bytes is None:
        return Bounds()
    work = {case.name: (float(task.flops(case)), float(task.bytes(case))) for case in task.cases}
    there = info.environment
    gpu = there if "copy_bytes_per_s" in there and "matmul_flops" in there else None
    try:
        target, dtype = from_spec(there.get(GPU_FACTS, info.config.target)), task.cases[0].dtype
    except ConfigError as error:  # of a plug-in, which reading a run does not need
        return Bounds(problem=f"the rates of its target are not known here: {error}")
    rates = bytes_per_s(target, gpu), flops_per_s(dtype, target, gpu)
    source = "measured on the GPU" if gpu else f"what kernels reach of the data sheet of {target.device_name}"
    return Bounds(work, *rates, f"{source}, {_rates(*rates)} (copying; {dtype} matrix products)")


def _rates(bytes_per_s: float, flops_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.2f} TB/s and {flops_per_s / 1e12:,.0f} TFLOP/s"
