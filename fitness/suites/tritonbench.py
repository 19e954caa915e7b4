"""TritonBench-G (github.com/thunlp/TritonBench): 184 files of kernels with wrappers, a line of #, and tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evo.errors import ConfigError

FOLDER = Path("data", "TritonBench_G_v1")
TITLE = "TritonBench-G"
_SEPARATOR = 20  # a line of so many # or more


@dataclass(frozen=True)
class Source:
    """One file of the suite: its kernels with their wrappers, and its tests."""

    name: str
    kernels: str
    tests: str


def sources(checkout: Path) -> list[Source]:
    """The files of a checkout, by name.  Raises ConfigError where it is none."""
    folder = checkout / FOLDER
    files = sorted(folder.glob("*.py"))
    if not files:
        raise ConfigError(
            f"expected a checkout of TritonBench with {FOLDER}/*.py, found none in {checkout}; "
            "git clone https://github.com/thunlp/TritonBench, and give its path"
        )
    return [_split(file.stem, file.read_text(encoding="utf-8")) for file in files]


def _split(name: str, text: str) -> Source:
    """The last two of the parts between lines of #: one file repeats its kernel part, shortened, before its tests."""
    parts: list[list[str]] = [[]]
    for line in text.split("\n"):
        bare = line.strip()
        if len(bare) >= _SEPARATOR and set(bare) == {"#"}:
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return Source(name, text, "")
    return Source(name, "\n".join(parts[-2]).strip("\n") + "\n", "\n".join(parts[-1]))
