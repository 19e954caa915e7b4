"""Checks suites whose files say what is to be computed, and have no kernel: seed kernels come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from evo.core.errors import ConfigError
from fitness.candidate import CompiledCandidate, FrontEnd
from fitness.cpu_backend import CpuBackend, executable
from fitness.frontend.gate import gate
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.sandbox.zygote import Zygote
from fitness.suites import SuiteFile, check, python_files, text_of
from fitness.suites.check import LIMITS, CheckOutcome, Verifier
from fitness.suites.tritonbench import STAGES
from fitness.tasks.task import Task
from fitness.verify.verify import Executable

ALONE = "no seed kernel: a search needs a model, which writes the first one, or a kernel by --seeds"

# What a Stop says of the stage reached before.
_REACHED = {"gate": 1, "record": 1, "compile": 2, "screen": 3}


class SeededChecker(check.SuiteChecker):
    """Checks like SuiteChecker; the reference of a task is PyTorch's function."""

    stages: ClassVar[Sequence[str]] = STAGES

    def __init__(
        self,
        root: Path,
        target: Target,
        zygote: Zygote,
        verifier: Verifier | None = None,
        *,
        seeds: Path | None = None,
        own_seeds: bool = True,
    ) -> None:
        """Keeps the settings. seeds: a folder of kernels that are preferred to evo's; own_seeds: use evo's, too."""
        super().__init__(root, target, zygote, verifier)
        self._seeds, self._own_seeds = seeds, own_seeds

    def _seed_of(self, source: SuiteFile, find: Callable[[Any, Path | None], str | None]) -> str | None:
        """Returns the seed kernel of a file; find: returns the one in a folder of the user's, else evo's, else None."""
        return find(source, self._seeds) if self._own_seeds else given(source.name, self._seeds)

    def _check_kernel(self, task: Task, outcome: CheckOutcome) -> None:
        """Takes the seed kernel through all stages.  Raises Stop, with `outcome` as far as it came."""
        outcome.calls = len(task.cases)
        findings = gate(task.needed_seed, entry=task.entry, allow_delegation=task.allow_delegation)
        outcome.rules = sorted({finding.rule for finding in findings})
        front_end = FrontEnd(task, self._target, measured=self._on_gpu, limits=LIMITS, zygote=self._zygote)
        try:
            compiled = front_end.collect(task.needed_seed)
            check.add_seconds(outcome, "recorded", compiled.seconds["record"])
            check.add_seconds(outcome, "compiled", compiled.seconds["compile"])
            with check.clocked(outcome, "verified"):
                self._verifier(task, compiled)
            self._check_idle(task, compiled, outcome)
        except Stop as stop:
            outcome.stages = list(self.stages[: _REACHED.get(stop.stage, 3)])
            raise
        finally:
            front_end.close()
        outcome.stages = list(self.stages)

    def _check_reference(self, task: Task, outcome: CheckOutcome) -> None:
        """Checks a task without a seed kernel: PyTorch can be its baseline, and idle kernels are found wrong.

        Raises Stop, with `outcome` as far as it came.
        """
        outcome.calls, outcome.rules = len(task.cases), []
        front_end = FrontEnd(task, self._target, measured=self._on_gpu, limits=LIMITS, zygote=self._zygote)
        try:
            with check.clocked(outcome, "recorded"):
                compiled = front_end.baseline()
        finally:
            front_end.close()
        outcome.stages = list(self.stages[:2])
        self._check_idle(task, compiled, outcome)
        outcome.alone, outcome.reason = True, ALONE

    def _executable(self, task: Task, compiled: CompiledCandidate) -> Executable:
        return executable(task, task.needed_seed, compiled)

    def _interpreted(self, task: Task, compiled: CompiledCandidate) -> Collection[str]:
        """Verifies at the sizes for a CPU."""
        backend = CpuBackend(task, self._target, limits=LIMITS, zygote=self._zygote)
        try:
            backend.prepare(task.needed_seed, compiled)
        finally:
            backend.close()
        return ()


def given(name: str, folder: Path | None) -> str | None:
    """Returns the kernel that a folder of the user's has for the file of that name."""
    if folder is not None and (path := folder / f"{name}.py").exists():
        return text_of(path)
    return None


def check_seeds(folder: Path, sources: Sequence[SuiteFile], function: str) -> None:
    """Raises ConfigError if a file of `folder` is for no file of the suite. function: what each has to define."""
    if not folder.is_dir():
        raise ConfigError(f"--seeds: expected a folder of kernels, got {folder}")
    names = {source.name for source in sources}
    unknown = [path.stem for path in python_files(folder) if path.stem not in names]
    if unknown:
        raise ConfigError(
            f"--seeds: expected files called like those of the suite ({min(names)}.py), with {function}, got "
            f"{', '.join(unknown)}"
        )
