"""Reads the files of TritonBench (github.com/thunlp/TritonBench).

TritonBench-G: 184 files of kernels with wrappers, a line of #, and tests.  TritonBench-T (`tritonbench_t`): 166 files
of the same form, with a PyTorch function in the place of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from evo.core.errors import ConfigError
from fitness.suites import python_files, text_of

FOLDER = Path("data", "TritonBench_G_v1")
SIZES = Path("performance_metrics", "perf_G", "golden_metrics")  # scripts that time each file, NAME_perf.py
TITLE = "TritonBench-G"
STAGES = ("captured", "recorded", "compiled", "verified")
_SEPARATOR = 20  # a line of this many # or more


@dataclass(frozen=True)
class TritonBenchFile:
    """One file: its kernels with their wrappers (or its function), its tests, and the script that times it."""

    name: str
    kernels: str
    tests: str
    timed: str = ""  # "" without a script


def sources(checkout: Path, folder: Path = FOLDER, sizes: Path = SIZES) -> list[TritonBenchFile]:
    """Returns the files of a checkout, by name.  Raises ConfigError if it is not a checkout."""
    files = python_files(checkout / folder)
    if not files:
        raise ConfigError(
            f"expected a checkout of TritonBench with {folder}/*.py, found none in {checkout}; "
            "git clone https://github.com/thunlp/TritonBench, and give its path"
        )
    found = [_split(file.stem, text_of(file)) for file in files]
    return [replace(source, timed=_text(checkout / sizes / f"{source.name}_perf.py")) for source in found]


def _text(path: Path) -> str:
    return text_of(path) if path.exists() else ""


def _split(name: str, text: str) -> TritonBenchFile:
    """Splits at lines of #; takes the last two parts: one file repeats its kernel part, shortened, before its tests."""
    parts: list[list[str]] = [[]]
    for line in text.split("\n"):
        bare = line.strip()
        if len(bare) >= _SEPARATOR and set(bare) == {"#"}:
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return TritonBenchFile(name, text, "")
    return TritonBenchFile(name, "\n".join(parts[-2]).strip("\n") + "\n", "\n".join(parts[-1]))
