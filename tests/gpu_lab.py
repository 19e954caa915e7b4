"""A task with a runner of its own, for tests that need a GPU."""

from __future__ import annotations

from pathlib import Path

from fitness.gpu.launch_bundle import make_bundle
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import CPU, Calls
from fitness.tasks.task import load_task
from tests import gpu_sources as sources


class Lab:
    """A task folder, a zygote and a runner that knows the baseline."""

    def __init__(self, root: Path, task: str = sources.TASK, seed: str = sources.SEED, wall_s: float = 30.0) -> None:
        (root / "task").mkdir()
        (root / "task" / "task.py").write_text(task)
        (root / "task" / "kernel.py").write_text(seed)
        self.task, self.root = load_task(root / "task"), root
        described = Calls(self.task).described().items()
        self.calls = [{"name": name, "args": args} for name, args in described if not name.endswith(CPU)]
        self.zygote, self._count = Zygote("sm_90", ("record", "compile")), 0
        self.runner = Runner(root / "task", wall_s=wall_s)
        self.baseline = self.runner.prepare(self.work(seed))

    def work(self, source: str) -> LaunchBundle:
        self._count += 1
        scratch = self.root / str(self._count)
        scratch.mkdir()
        return make_bundle(
            source,
            self.task,
            self.calls,
            zygote=self.zygote,
            target="sm_90",
            scratch=scratch,
            limits=Limits(wall_s=120),
        )

    def evaluate(self, source: str, seed: str = "1") -> Report:
        return self.runner.evaluate(self.work(source), seed=seed)

    def close(self) -> None:
        self.runner.close()
        self.zygote.close()
