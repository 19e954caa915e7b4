"""Reads files of KernelBench (Ouyang et al. 2025, arXiv:2502.10517; github.com/ScalingIntelligence/KernelBench)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evo.core.errors import ConfigError
from fitness.suites import python_files, text_of

LEVELS = (1, 2, 3)
TITLE = "KernelBench"
STAGES = ("read", "recorded", "compiled", "verified")


@dataclass(frozen=True)
class KernelBenchFile:
    """One problem: `level1_19_ReLU` and the text of its file."""

    name: str
    kernels: str

    @property
    def family(self) -> str:
        """Returns the name without level, number and case; a seed kernel is for one family."""
        return self.name.partition("_")[2].partition("_")[2].strip("_").lower()


def sources(checkout: Path) -> list[KernelBenchFile]:
    """Returns the problems of a checkout, by level and number.  Raises ConfigError if it is not a checkout."""
    found = []
    for level in LEVELS:
        for root in (checkout, checkout / TITLE):
            files = sorted(python_files(root / f"level{level}"), key=_number)
            found += [KernelBenchFile(f"level{level}_{f.stem}", text_of(f)) for f in files]
    if not found:
        raise ConfigError(
            f"expected a checkout of KernelBench with {TITLE}/level1/*.py, found none in {checkout}; "
            "git clone https://github.com/ScalingIntelligence/KernelBench, and give its path"
        )
    return found


def _number(path: Path) -> tuple[int, str]:
    number = path.stem.partition("_")[0]
    return int(number) if number.isdigit() else 0, path.stem
