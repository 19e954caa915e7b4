"""What commands share: tasks, evaluators and scores put together, arguments, output."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from evo.errors import ConfigError

if TYPE_CHECKING:
    from evo.device import Gpus
    from evo.engine import Score
    from evo.profiles import Profiler
    from fitness.task import Task
    from fitness.workshop import Workshop

EXIT_NOT_OK, EXIT_MISUSE, EXIT_INTERRUPTED = 1, 2, 130


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="sm_90", help="GPU to compile for (default: sm_90)")
    parser.add_argument(
        "--gpus", metavar="N|all|none", help="measure on GPUs, or estimate (default: the first GPU, if it is a target)"
    )


def load_task(name_or_folder: str) -> Task:
    from fitness.task import load_task as load

    return load(name_or_folder)


def find_gpus(target: str) -> Gpus:
    from fitness.gpus import find_gpus as find
    from fitness.target import get_target

    return find(get_target(target))


def open_workshop(target: str, device: str) -> Workshop:
    """Opens evaluators of several tasks that are used at the same time; `device` as of `open_evaluator`."""
    from fitness.target import get_target
    from fitness.workshop import Workshop

    return Workshop(get_target(target), measured=device == "gpu")


def open_evaluator(task: Task, target: str, device: str) -> Profiler:
    """`device`: "gpu" measures on the first GPU, "cpu" estimates."""
    from fitness.evaluator import CpuEvaluator
    from fitness.gpu_evaluator import GpuEvaluator
    from fitness.target import get_target

    return (GpuEvaluator if device == "gpu" else CpuEvaluator)(task, get_target(target))


def scorer() -> Score:
    from fitness.score import score

    return score


def workers(wanted: int | None) -> int:
    return len(os.sched_getaffinity(0)) if wanted is None else wanted


def say(text: str) -> None:
    print(text, flush=True)


def read_kernel(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a kernel file in UTF-8 at {path}, got: {error}; check the path") from error
