"""The suite TritonBench-G."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fitness.suites.base import CheckSettings
from fitness.suites.tritonbench import STAGES, TritonBenchFile, sources

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.sandbox.zygote import Zygote
    from fitness.suites.check import SuiteChecker, Verifier


class TritonBenchG:
    """Files of kernels with their wrappers and tests.  See `fitness.suites.base.Suite`."""

    name = "tritonbench"
    stages = STAGES
    seed_kernel = ""
    sized = False

    def files(self, checkout: Path) -> Sequence[TritonBenchFile]:
        return sources(checkout)

    def checker(
        self, folder: Path, target: Target, zygote: Zygote, verifier: Verifier | None, settings: CheckSettings
    ) -> SuiteChecker:
        from fitness.suites.check import SuiteChecker

        return SuiteChecker(folder, target, zygote, verifier)
