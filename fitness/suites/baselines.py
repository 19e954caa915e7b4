"""Times PyTorch beside the seed kernels of a suite's tasks, on the first GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fitness.candidate import FrontEnd
from fitness.cuda.gpus import measuring
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.gpu.baselines import Baseline, names
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.zygote import Zygote
from fitness.suites.check import LIMITS
from fitness.tasks.task import Task


def measure(tasks: Sequence[Task], target: Target, workers: int) -> Iterator[tuple[Task, list[Baseline]]]:
    """Yields the baselines of each task, from one process on the GPU; meanwhile `workers` threads record and compile.

    `target` gets the properties of the GPU. Raises EvoError if no runner can be had.
    """
    target = measuring(target)
    with (
        Zygote(target.spec, ("record", "compile")) as zygote,
        Runner("softmax", wall_s=LIMITS.wall_s) as runner,
        ThreadPoolExecutor(workers) as pool,
    ):
        for task, bundle in zip(tasks, pool.map(_maker(target, zygote), tasks), strict=True):
            found = bundle if isinstance(bundle, Stop) else runner.baselines(task.folder, bundle)
            yield task, _failed(task, found.message) if isinstance(found, (Stop, Report)) else found


def _maker(target: Target, zygote: Zygote) -> Callable[[Task], LaunchBundle | Stop]:
    def make(task: Task) -> LaunchBundle | Stop:
        front_end = FrontEnd(task, target, measured=True, limits=LIMITS, zygote=zygote)
        try:
            compiled = front_end.collect(task.needed_seed)
        except Stop as stop:
            return stop
        finally:
            front_end.close()
        return LaunchBundle(compiled.plans, compiled.builds, compiled.cubins)

    return make


def _failed(task: Task, message: str) -> list[Baseline]:
    return [Baseline(n, c.name, error=message) for n in names(task) for c in task.cases if c.role == "tune"]
