"""TritonBench-T as a suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fitness.suites.base import CheckSettings
from fitness.suites.tritonbench import STAGES, TritonBenchFile, sources

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.sandbox.zygote import Zygote
    from fitness.suites.check import Verifier
    from fitness.suites.tritonbench_t.check import TritonBenchTChecker

FOLDER = Path("data", "TritonBench_T_v1")
SIZES = Path("performance_metrics", "perf_T", "golden_metrics")


class TritonBenchT:
    """Files with a PyTorch function in the place of kernels.  See `fitness.suites.base.Suite`."""

    name = "tritonbench-t"
    stages = STAGES
    seed_kernel = "a function as the file's"
    sized = False

    def files(self, checkout: Path) -> Sequence[TritonBenchFile]:
        return sources(checkout, FOLDER, SIZES)

    def checker(
        self, folder: Path, target: Target, zygote: Zygote, verifier: Verifier | None, settings: CheckSettings
    ) -> TritonBenchTChecker:
        from fitness.suites.tritonbench_t.check import TritonBenchTChecker

        seeds, own = settings.seeds, settings.own_seeds
        return TritonBenchTChecker(folder, target, zygote, verifier, seeds=seeds, own_seeds=own)
