"""Takes a problem through every stage: read, then its seed kernel recorded, compiled and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evo.errors import TaskError
from fitness.compilation.target import Target
from fitness.evaluator import CpuJudge
from fitness.facts import Facts, Recorder
from fitness.rules.gate import gate
from fitness.sandbox.zygote import Zygote
from fitness.stages import Stop
from fitness.suites import check
from fitness.suites.check import LIMITS, Outcome, Verifier
from fitness.suites.kernelbench.folder import parameters_of, write_folder
from fitness.suites.kernelbench.seeds import seed_kernel
from fitness.task import Task, load_task

STAGES = ("read", "recorded", "compiled", "verified")
MOST_BYTES = 2 << 30

# Of a Stop: what was reached before.
_REACHED = {"gate": 1, "record": 1, "compile": 2, "screen": 3}


class Checker(check.Checker):
    """As that of other suites; a problem's reference is its model, its seed kernel is evo's or the user's."""

    def __init__(
        self,
        root: Path,
        target: Target,
        zygote: Zygote,
        verifier: Verifier | None = None,
        *,
        seeds: Path | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`seeds`: a folder of kernels that go before evo's; `most_bytes`: of inputs, state and outputs of a case."""
        super().__init__(root, target, zygote, verifier)
        self._seeds, self._most_bytes = seeds, most_bytes

    def _through(self, source: Any, scratch: Path, outcome: Outcome) -> None:
        folder, kernel = self._root / source.name, seed_kernel(source, self._seeds)
        sizes = write_folder(folder, source, kernel, self._most_bytes)
        if sizes.reduced:
            outcome.note = "reduced to " + ", ".join(f"{name}={size}" for name, size in sizes.own.items())
        task = _loaded(folder, kernel)
        outcome.stages.append("read")
        if kernel is None:
            raise TaskError("no seed kernel: evo has none for it; give one by --seeds")
        outcome.calls = len(task.cases)
        findings = gate(kernel, entry=task.entry, allow_delegation=False)
        outcome.rules = sorted({finding.rule for finding in findings})
        try:
            self._check_kernel(task)
        except Stop as stop:
            outcome.stages = list(STAGES[: _REACHED.get(stop.stage, 3)])
            raise
        outcome.stages = list(STAGES)

    def _check_kernel(self, task: Task) -> None:
        recorder = Recorder(task, self._target, measured=self._on_gpu, limits=LIMITS, zygote=self._zygote)
        try:
            self._verifier(task, recorder.collect(task.seed_source))
        finally:
            recorder.close()

    def _interpreted(self, task: Task, facts: Facts) -> None:
        """Verified at the sizes for a CPU, which other suites do not have."""
        judge = CpuJudge(task, self._target, limits=LIMITS, zygote=self._zygote)
        try:
            judge.prepare(task.seed_source, facts)
        finally:
            judge.close()


def _loaded(folder: Path, kernel: str | None) -> Task:
    """The task, checked by running its reference.  Without a kernel the problem alone is checked."""
    path = folder / "kernel.py"
    if kernel is not None:
        return load_task(folder)
    path.write_text(f"def entry({', '.join(parameters_of(folder))}):\n    return None\n", encoding="utf-8")
    try:
        return load_task(folder)
    finally:
        path.unlink()
