"""KernelBench as a suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fitness.suites.base import CheckSettings
from fitness.suites.kernelbench.checkout import STAGES, KernelBenchFile, sources

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.sandbox.zygote import Zygote
    from fitness.suites.check import Verifier
    from fitness.suites.kernelbench.check import KernelBenchChecker


class KernelBench:
    """Problems of levels 1 to 3: a PyTorch model each.  See `fitness.suites.base.Suite`."""

    name = "kernelbench"
    stages = STAGES
    seed_kernel = "a function `entry`"
    sized = True

    def files(self, checkout: Path) -> Sequence[KernelBenchFile]:
        return sources(checkout)

    def checker(
        self, folder: Path, target: Target, zygote: Zygote, verifier: Verifier | None, settings: CheckSettings
    ) -> KernelBenchChecker:
        from fitness.suites.kernelbench.check import MOST_BYTES, KernelBenchChecker

        most = MOST_BYTES if settings.most_bytes is None else settings.most_bytes
        seeds, own = settings.seeds, settings.own_seeds
        return KernelBenchChecker(folder, target, zygote, verifier, seeds=seeds, own_seeds=own, most_bytes=most)
