"""Takes a problem through every stage: read, then its seed kernel recorded, compiled and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fitness.frontend.target import Target
from fitness.sandbox.zygote import Zygote
from fitness.suites import seeded
from fitness.suites.check import CheckOutcome, Verifier
from fitness.suites.kernelbench.checkout import STAGES
from fitness.suites.kernelbench.folder import write_folder
from fitness.suites.kernelbench.seeds import seed_kernel
from fitness.tasks.task import load_task

MOST_BYTES = 2 << 30


class KernelBenchChecker(seeded.SeededChecker):
    """Checks like SeededChecker; a problem's reference is its model, its seed kernel is evo's or the user's."""

    stages = STAGES

    def __init__(
        self,
        root: Path,
        target: Target,
        zygote: Zygote,
        verifier: Verifier | None = None,
        *,
        seeds: Path | None = None,
        own_seeds: bool = True,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Keeps the settings.

        seeds, own_seeds: as `SeededChecker` takes them; most_bytes: of inputs, state and outputs of a case.
        """
        super().__init__(root, target, zygote, verifier, seeds=seeds, own_seeds=own_seeds)
        self._most_bytes = most_bytes

    def _through(self, source: Any, scratch: Path, outcome: CheckOutcome) -> None:
        folder, kernel = self._root / source.name, self._seed_of(source, seed_kernel)
        sizes = write_folder(folder, source, kernel, self._most_bytes)
        if sizes.reduced:
            outcome.note = "reduced to " + ", ".join(f"{name}={size}" for name, size in sizes.own.items())
        task = load_task(folder)
        outcome.stages.append("read")
        if kernel is None:
            self._check_reference(task, outcome)
        else:
            self._check_kernel(task, outcome)
