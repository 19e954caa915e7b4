"""Shares code between commands: tasks, evaluators and scores, arguments, output."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from evo.core.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.search.engine import Score
    from evo.search.profiling import Profiler
    from fitness.cluster.pool import Cluster, ClusterEvaluatorFactory
    from fitness.devices import Choice, Gpus
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.sandbox.jobs import Limits
    from fitness.tasks.task import Task

EXIT_NOT_OK, EXIT_MISUSE, EXIT_INTERRUPTED = 1, 2, 130


def add_target(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--target",
        default="sm_90",
        help="what to compile for: sm_90 (default) or h100; estimates are of an H200 or an H100",
    )
    add_gpus(parser)


def add_gpus(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--gpus",
        metavar="N|all|none",
        help="measure on that many GPUs, or estimate (default: the first GPU, if it is a target)",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """`add_target` for commands that drive several GPUs."""
    add_target(parser)
    add_ray(parser)


def add_ray(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="spread evaluations over a Ray cluster, by default all its GPUs: HOST:PORT, auto or local",
    )


def load_task(name_or_folder: str, expected: str = "") -> Task:
    """Returns the task; prints a line if it changed since it was frozen.  `expected`: see `load_task` of tasks."""
    from fitness.tasks.frozen import changed
    from fitness.tasks.task import load_task as load

    task = load(name_or_folder, expected=expected)
    if warning := changed(task.folder):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    return task


def find_gpus(target: str) -> Gpus:
    from fitness.cuda.gpus import find_gpus as find
    from fitness.frontend.target import get_target

    return find(get_target(target))


def open_workshop(target: str, device: str, limits: Limits | None = None) -> EvaluatorFactory:
    """Opens evaluators of several tasks that are used at the same time; `device`: see `open_evaluator`.

    `limits`: of recording and compiling, if kernels need more than the usual.
    """
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.frontend.target import get_target

    return EvaluatorFactory(get_target(target), measured=device == "gpu", limits=limits)


def open_evaluator(task: Task, target: str, device: str) -> Profiler:
    """`device`: "gpu" measures on the first GPU, "cpu" estimates."""
    from fitness.cpu_backend import CpuEvaluator
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator

    return (GpuEvaluator if device == "gpu" else CpuEvaluator)(task, get_target(target))


@dataclass(frozen=True)
class Devices:
    """The devices that evaluate: this process, on one GPU or none, or the workers of a Ray cluster."""

    choice: Choice
    cluster: Cluster | None

    def workers(self, wanted: int | None) -> int:
        """`wanted`, or as many evaluations at once as keep everything busy."""
        if wanted is not None or self.cluster is None:
            return workers(wanted)
        return self.cluster.workers(self.choice.gpus)

    def say(self, file: TextIO | None = None) -> None:
        print(self.choice.line, file=file, flush=True)
        if self.cluster is not None:
            print(f"evaluating through Ray on {self.cluster}", file=file, flush=True)

    def open(self, task: Task, target: str) -> Profiler:
        from fitness.tasks.advice import slow_case

        if self.choice.device == "cpu" and (slow := slow_case(task)):
            print(f"warning: {slow}", file=sys.stderr, flush=True)
        if self.cluster is None:
            return open_evaluator(task, target, self.choice.device)
        return open_cluster_evaluator(self.cluster, task, target, self.choice.gpus)

    def open_workshop(self, target: str) -> EvaluatorFactory | ClusterEvaluatorFactory:
        """Opens evaluators of several tasks that are used at the same time."""
        if self.cluster is None:
            return open_workshop(target, self.choice.device)
        return open_cluster_workshop(self.cluster, target, self.choice.gpus)


def find_devices(gpus: str | None, address: str | None, target: str, before: RunConfig | None = None) -> Devices:
    """Returns the devices to evaluate with; `gpus` and `address`: from the command line, `before`: of a run that
    continues.

    Raises ConfigError if it is not available.
    """
    from fitness.devices import check_address, resolve

    address = address or (before.ray_address if before else None)
    check_address(address)
    cluster = join(address) if address else None
    unasked = (before.gpus if before else None) or ("all" if cluster else "1")
    choice = resolve(
        gpus,
        partial(_cluster_gpus, cluster, target) if cluster else partial(find_gpus, target),
        unasked=unasked,
        started=before.device if before else "",
    )
    return Devices(choice, join("local") if choice.gpus > 1 and cluster is None else cluster)


def open_cluster_evaluator(cluster: Cluster, task: Task, target: str, gpus: int) -> Profiler:
    """Measures on that many GPUs of the cluster; with 0 estimates on its CPUs."""
    from evo.core.versions import versions
    from fitness.cluster.pool import ClusterEvaluator
    from fitness.frontend.target import get_target

    return ClusterEvaluator(cluster, task, get_target(target), gpus=gpus, versions=versions)


def open_cluster_workshop(cluster: Cluster, target: str, gpus: int) -> ClusterEvaluatorFactory:
    from evo.core.versions import versions
    from fitness.cluster.pool import ClusterEvaluatorFactory
    from fitness.frontend.target import get_target

    return ClusterEvaluatorFactory(cluster, get_target(target), gpus=gpus, versions=versions)


def join(address: str) -> Cluster:
    from fitness.cluster.pool import Cluster

    return Cluster(address)


def _cluster_gpus(cluster: Cluster, target: str) -> Gpus:
    from fitness.frontend.target import get_target

    return cluster.find_gpus(get_target(target))


def scorer() -> Score:
    from fitness.score import score

    return score


def one_thread_each() -> None:
    """Limits PyTorch to one thread for work in many threads: its own threads for all cores would be thousands."""
    import torch

    torch.set_num_threads(1)


def workers(wanted: int | None) -> int:
    return len(os.sched_getaffinity(0)) if wanted is None else wanted


def check_workers(wanted: int | None) -> None:
    if wanted is not None and wanted < 1:
        raise ConfigError(f"workers: expected at least 1, got {wanted}; set --workers")


@contextmanager
def pyarrow_for(what: str) -> Iterator[None]:
    """Wraps an import that needs pyarrow.  Raises ConfigError if that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ConfigError(f"expected pyarrow to be installed, for {what}; {how_to_install('analysis')}") from error


def check_seed(seed: int) -> None:
    from evo.core.settings import SEEDS

    low, high = SEEDS
    if not low <= seed <= high:
        raise ConfigError(f"seed: expected an integer from {low} to {high}, got {seed}; set --seed")


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # one write: threads would come between a line and its end


def read_kernel(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a kernel file in UTF-8 at {path}, got: {error}; check the path") from error
