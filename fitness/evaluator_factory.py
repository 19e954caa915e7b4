"""Opens evaluators of several tasks at the same time, on one machine with one GPU or none."""

from __future__ import annotations

from fitness.cpu_backend import CpuEvaluator
from fitness.evaluator import TaskEvaluator
from fitness.frontend.target import Target
from fitness.gpu_backend import GpuEvaluator, SharedGpu
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task


class EvaluatorFactory:
    """Opens evaluators that share a warm zygote and, if they measure, take turns on the first GPU.

    Each has its own runner process.  The GPU lock lets one of them use the GPU, so no two timings overlap.  Close the
    evaluators first.
    """

    def __init__(self, target: Target, *, measured: bool, limits: Limits | None = None) -> None:
        """Keeps the settings.

        limits: of the jobs that record and compile, for kernels that need more than the usual.
        """
        self._target, self._measured, self._limits = target, measured, limits
        self._zygote = Zygote(target.spec)
        self._gpu = SharedGpu()

    def open(self, task: Task) -> TaskEvaluator:
        if self._measured:
            return GpuEvaluator(task, self._target, recording=self._limits, zygote=self._zygote, gpu=self._gpu)
        return CpuEvaluator(task, self._target, limits=self._limits, zygote=self._zygote)

    def close(self) -> None:
        self._gpu.close()
        self._zygote.close()
