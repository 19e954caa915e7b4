"""Opens evaluators: chooses what evaluates (a GPU, several, a Ray cluster, a model of the target) and starts it."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from evo.core.errors import EvoWarning

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.search.profiling import Profiler
    from fitness.cluster.pool import Cluster, ClusterEvaluatorFactory
    from fitness.devices import Choice, Gpus
    from fitness.evaluator import TaskEvaluator
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.sandbox.jobs import Limits
    from fitness.sandbox.zygote import Zygote
    from fitness.tasks.task import Task


def workers(wanted: int | None) -> int:
    """`wanted`, or one evaluation at once for each processor."""
    return len(os.sched_getaffinity(0)) if wanted is None else wanted


def find_gpus(target: str) -> Gpus:
    """The GPUs of this machine, and whether they are of the target."""
    from fitness.cuda.gpus import find_gpus as find
    from fitness.frontend.target import get_target

    return find(get_target(target))


def join(address: str) -> Cluster:
    """The Ray cluster at `address`."""
    from fitness.cluster.pool import Cluster

    return Cluster(address)


def open_evaluator(
    task: Task, target: str, device: str, zygote: Zygote | None = None, *, profiles: bool = False
) -> TaskEvaluator:
    """An evaluator in this process.

    device: "gpu" measures on the first GPU, "cpu" estimates.  zygote: a warm one of the caller's, which stays open.
    profiles: whether the seed kernel will be profiled as soon as it is evaluated.
    """
    from fitness.cpu_backend import CpuEvaluator
    from fitness.frontend.target import get_target
    from fitness.gpu_backend import GpuEvaluator

    if device == "gpu":
        return GpuEvaluator(task, get_target(target), zygote=zygote, profiles=profiles)
    return CpuEvaluator(task, get_target(target), zygote=zygote)


def open_factory(target: str, device: str, limits: Limits | None = None) -> EvaluatorFactory:
    """Opens evaluators of several tasks that are used at the same time; `device` as in `open_evaluator`.

    limits: of recording and compiling, if kernels need more than the usual.
    """
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.frontend.target import get_target

    return EvaluatorFactory(get_target(target), measured=device == "gpu", limits=limits)


def open_cluster_evaluator(cluster: Cluster, task: Task, target: str, gpus: int) -> Profiler:
    """Measures on that many GPUs of the cluster; with 0 estimates on its CPUs."""
    from evo.core.versions import versions
    from fitness.cluster.pool import ClusterEvaluator
    from fitness.frontend.target import get_target

    return ClusterEvaluator(cluster, task, get_target(target), gpus=gpus, versions=versions)


def open_cluster_factory(
    cluster: Cluster, target: str, gpus: int, limits: Limits | None = None
) -> ClusterEvaluatorFactory:
    """As `open_factory`, on a cluster."""
    from evo.core.versions import versions
    from fitness.cluster.pool import ClusterEvaluatorFactory
    from fitness.frontend.target import get_target

    return ClusterEvaluatorFactory(cluster, get_target(target), gpus=gpus, versions=versions, limits=limits)


@dataclass(frozen=True)
class Devices:
    """The devices that evaluate: this process, on one GPU or none, or the workers of a Ray cluster."""

    choice: Choice
    cluster: Cluster | None
    note: str = ""  # on estimates

    def workers(self, wanted: int | None) -> int:
        """`wanted`, or as many evaluations at once as keep everything busy."""
        if wanted is not None or self.cluster is None:
            return workers(wanted)
        return self.cluster.workers(self.choice.gpus)

    @property
    def lines(self) -> list[str]:
        """What evaluates, in words."""
        through = [] if self.cluster is None else [f"evaluating through Ray on {self.cluster}"]
        return [self.choice.line, *through, *([self.note] if self.note else [])]

    def open(self, task: Task, target: str, *, profiles: bool = False) -> Profiler:
        """The evaluator of a task; `profiles` as in `open_evaluator`.

        Warns of cases that are too large to be executed without a GPU.
        """
        from fitness.tasks.advice import slow_case

        if self.choice.device == "cpu" and (slow := slow_case(task)):
            warnings.warn(slow, EvoWarning, stacklevel=2)
        if self.cluster is None:
            return open_evaluator(task, target, self.choice.device, profiles=profiles)
        return open_cluster_evaluator(self.cluster, task, target, self.choice.gpus)

    def open_factory(self, target: str, limits: Limits | None = None) -> EvaluatorFactory | ClusterEvaluatorFactory:
        """Opens evaluators of several tasks that are used at the same time; `limits` as `open_factory` takes them."""
        if self.cluster is None:
            return open_factory(target, self.choice.device, limits)
        return open_cluster_factory(self.cluster, target, self.choice.gpus, limits)


def find_devices(gpus: str | None, address: str | None, target: str, before: RunConfig | None = None) -> Devices:
    """What to evaluate with.

    gpus, address: as --gpus and --ray-address take them.  before: the settings of a run that goes on.
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
    return Devices(
        choice, join("local") if choice.gpus > 1 and cluster is None else cluster, on_estimates(choice, target)
    )


def on_estimates(choice: Choice, target: str) -> str:
    """What is to be known of estimates if no measurement has tested those of a target; "" if a GPU measures."""
    from fitness.frontend.target import get_target

    machine = get_target(target)
    if choice.gpus or machine.calibrated:
        return ""
    return f"uncalibrated: rates of {machine.device_name} by its data sheet, in a model whose constants are an H200's"


def _cluster_gpus(cluster: Cluster, target: str) -> Gpus:
    from fitness.frontend.target import get_target

    return cluster.find_gpus(get_target(target))
