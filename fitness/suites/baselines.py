"""Times PyTorch, and libraries that tasks name, beside kernels of tasks, on the first GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fitness.candidate import FrontEnd
from fitness.cuda.gpus import measuring
from fitness.estimate.attainable import attainable_us
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.gpu.baselines import Baseline, names
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.zygote import Zygote
from fitness.suites.check import LIMITS
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task
from fitness.tasks.work import work_of


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of a task with the baselines that were timed beside it, and the attainable time of each tune case.

    gpu: `fitness.cuda.device.DeviceFacts` as a dict.
    """

    task: Task
    source: str
    baselines: list[Baseline]
    attainable_us: Mapping[str, float | None]
    gpu: Mapping[str, Any]


def measure(kernels: Sequence[tuple[Task, str]], target: Target, workers: int) -> Iterator[TimedKernel]:
    """Yields what was timed beside each kernel, from one process on the GPU.

    kernels: tasks and sources, right ones: they are not verified.  workers: threads that record and compile meanwhile.
    `target` gets the properties of the GPU. Raises EvoError if no runner can be had.
    """
    target = measuring(target)
    with (
        Zygote(target.spec, ("record", "compile")) as zygote,
        Runner("softmax", wall_s=LIMITS.wall_s) as runner,
        ThreadPoolExecutor(workers) as pool,
    ):
        for (task, source), bundle in zip(kernels, pool.map(_maker(target, zygote), kernels), strict=True):
            found = bundle if isinstance(bundle, Stop) else runner.baselines(task.folder, bundle)
            timed = _failed(task, found.message) if isinstance(found, (Stop, Report)) else found
            yield TimedKernel(task, source, timed, _attainable(task, target, runner.facts), runner.facts)


def _maker(target: Target, zygote: Zygote) -> Callable[[tuple[Task, str]], LaunchBundle | Stop]:
    def make(kernel: tuple[Task, str]) -> LaunchBundle | Stop:
        task, source = kernel
        front_end = FrontEnd(task, target, measured=True, limits=LIMITS, zygote=zygote)
        try:
            compiled = front_end.collect(source)
        except Stop as stop:
            return stop
        finally:
            front_end.close()
        return compiled.bundle()

    return make


def _failed(task: Task, message: str) -> list[Baseline]:
    return [Baseline(n, c.name, error=message) for n in names(task) for c in task.cases if c.role == "tune"]


def _attainable(task: Task, target: Target, gpu: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the attainable time of each tune case; None if the work is neither stated nor counted."""
    calls = Calls(task)
    works = {case.name: work_of(task, case, calls.describe(case)) for case in calls.tune}
    return {name: None if work is None else attainable_us(work, target, gpu) for name, work in works.items()}
