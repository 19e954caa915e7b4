"""Runs a whole program with and without replaced kernels, alternately: same outputs, and which is faster?

A side is `original`, or the folders of one or more packages that `evo apply RUN --package DIR` made, with commas
between them.  Outputs are a file that the program writes (.pt, .npz, .npy or .json), or the numbers that a regular
expression finds in what it prints.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError
from evo.programs.capture import Capture, read
from evo.programs.inside import without_device
from evo.programs.run import ProgramEnd, run_program
from fitness.gpu.timing import Ratio, paired_ratio

ORIGINAL = "original"
SUFFIXES = (".pt", ".npz", ".npy", ".json")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outputs:
    """How to get what a program puts out: the file that it writes, or a pattern for numbers in what it prints."""

    file: Path | None
    numbers: re.Pattern[str] | None

    def of(self, ended: ProgramEnd) -> dict[str, Any]:
        """Returns the outputs of a run by name: arrays of NumPy, numbers, texts, lists.  Raises ConfigError."""
        if self.file is not None:
            return _flat(self.file.name, _read(self.file))
        assert self.numbers is not None
        found = [_number(match) for match in self.numbers.finditer(ended.printed)]
        if not found:
            raise ConfigError(
                f"--numbers: expected a pattern that finds numbers in what the program prints, got "
                f"{self.numbers.pattern!r}, which finds none"
            )
        return {f"number {i}": value for i, value in enumerate(found)}


def outputs(file: Path | None, numbers: str | None) -> Outputs:
    """Returns how to get the outputs.  Raises ConfigError if neither or both are given, or one cannot be used."""
    if (file is None) == (numbers is None):
        got = "neither" if file is None else "both"
        raise ConfigError(
            f"--compare: expected --output FILE (which the program writes) or --numbers REGEX (for what it prints), "
            f"got {got}"
        )
    if file is not None and file.suffix not in SUFFIXES:
        raise ConfigError(f"--output: expected a file {', '.join(SUFFIXES)}, got {file}")
    try:
        return Outputs(file, None if numbers is None else re.compile(numbers, re.MULTILINE))
    except re.error as error:
        raise ConfigError(f"--numbers: expected a regular expression, got {numbers!r}: {error}") from error


def _number(match: re.Match[str]) -> float:
    text = match.group(1) if match.re.groups else match.group(0)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--numbers: expected a pattern of numbers, got {text!r}; put ( ) around one") from None


def _read(file: Path) -> Any:
    try:
        if file.suffix == ".json":
            return json.loads(file.read_text(encoding="utf-8"))
        if file.suffix == ".pt":
            import torch

            return torch.load(file, map_location="cpu", weights_only=True)
        import numpy as np

        loaded = np.load(file, allow_pickle=False)
        return dict(loaded) if file.suffix == ".npz" else loaded
    except FileNotFoundError:
        raise ConfigError(f"--output: expected the program to write {file}, which is not there") from None
    except Exception as error:  # a file in any state
        got = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--output: expected a file {file} that can be read, got {got}") from error


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Returns the leaves of nested dicts and lists by name, tensors as arrays."""
    if isinstance(value, Mapping):
        return {k: v for key, part in value.items() for k, v in _flat(f"{name}.{key}", part).items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, part in enumerate(value) for k, v in _flat(f"{name}[{i}]", part).items()}
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        value = tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()
    return {name: value}


def deviation(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, str]:
    """Returns how far outputs differ, and the name of the one that differs most.

    Of an array: the largest difference over the largest value of `one`.  Of a number: the difference over it.  Infinite
    for other names, shapes or kinds, for other texts and whole numbers in arrays, and for NaN in one of them.
    """
    if one.keys() != other.keys():
        return math.inf, next(iter(one.keys() ^ other.keys()))
    found = [(_differs(one[name], other[name]), name) for name in one]
    return max(found, default=(0.0, ""), key=lambda pair: pair[0])


def _differs(one: Any, other: Any) -> float:
    import numpy as np

    numeric = (bool, int, float, np.ndarray, np.generic)
    if not isinstance(one, numeric) or not isinstance(other, numeric):
        return 0.0 if one == other else math.inf
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    difference = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    size = float(np.max(np.abs(a[finite]), initial=0.0))
    return 0.0 if difference == 0 else difference / size if size else math.inf


# --- the comparison --------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One side: its name, the packages (none: the original), seconds of its timed runs, and its kernels.

    deviation: the largest from the first run of the first side; `worst`: of which output.
    """

    name: str
    packages: tuple[Path, ...]
    seconds: list[float] = field(default_factory=list)
    deviation: float = 0.0
    worst: str = ""
    capture: Capture | None = None
    report: str = ""  # what the packages said of their calls at the end of each process of a run.

    def note(self, differs: tuple[float, str]) -> None:
        if differs[0] > self.deviation:
            self.deviation, self.worst = differs


@dataclass
class Compared:
    """Both sides, and the time of the first over that of the second: above 1 the second is faster."""

    sides: tuple[Side, Side]
    tolerance: float
    ratio: Ratio

    @property
    def equal(self) -> bool:
        """Whether all runs put out the same, within the tolerance."""
        return all(side.deviation <= self.tolerance for side in self.sides)

    def data(self) -> dict[str, Any]:
        return {
            "sides": [
                {
                    "side": side.name,
                    "seconds": side.seconds,
                    "deviation": side.deviation,
                    "worst": side.worst,
                    "report": side.report,
                    "kernels": [] if side.capture is None else side.capture.data()["kernels"],
                }
                for side in self.sides
            ],
            "tolerance": self.tolerance,
            "equal": self.equal,
            "ratio": self.ratio.ratio,
            "ci95": [self.ratio.low, self.ratio.high],
            "pairs": self.ratio.pairs,
        }


def side_of(text: str) -> Side:
    """Returns the side that a user names.  Raises ConfigError if it is neither `original` nor packages."""
    if text == ORIGINAL:
        return Side(text, ())
    folders = [Path(name) for name in text.split(",")]
    for folder in folders:
        missing = [name for name in ("patch.py", "origin.json") if not (folder / name).exists()]
        if missing:
            raise ConfigError(
                f"--compare: expected {ORIGINAL}, or folders that `evo apply RUN --package DIR` made (with commas "
                f"between them), got {folder}, which lacks {' and '.join(missing)}"
            )
    names = [folder.resolve().name for folder in folders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--compare: expected packages of different names, got {twice} twice")
    return Side(text, tuple(folders))


def compare(
    command: Sequence[str], sides: tuple[Side, Side], wanted: Outputs, *, repeats: int, tolerance: float, say: Say
) -> Compared:
    """Runs the program: each side once watched, for the times of kernels, then `repeats` pairs alternately.

    Raises ConfigError if a run fails or has no outputs.
    """
    first: dict[str, Any] | None = None

    def run(side: Side, watch: Path | None) -> ProgramEnd:
        nonlocal first
        if wanted.file is not None:
            wanted.file.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder)
            ended = run_program(
                command, watch=watch, values=False, patches=side.packages, report=report, keep_output=True
            )
            if ended.code:
                raise ConfigError(
                    f"{side.name}: expected the program to end well, it ended with code {ended.code}{_without_gpu()}"
                )
            side.report = "\n".join(_report(package, report / str(i)) for i, package in enumerate(side.packages))
        found = wanted.of(ended)
        first = found if first is None else first
        side.note(deviation(first, found))
        return ended

    for side in sides:
        say(f"{side.name}: with its kernels watched")
        with tempfile.TemporaryDirectory() as folder:
            run(side, Path(folder))
            side.capture = read(Path(folder)) if any(Path(folder).glob("process-*.json")) else None
    for number in range(repeats):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.seconds.append(run(side, None).seconds)
            say(f"{side.name}: {side.seconds[-1]:.3f} s")
    return Compared(sides, tolerance, paired_ratio(sides[1].seconds, sides[0].seconds))


def _without_gpu() -> str:
    """Returns what lets a program with Triton kernels run here, if it lacks a GPU."""
    import torch  # seconds, which only a failure is worth

    if not without_device(torch):
        return ""
    return "; there is no GPU here: set TRITON_INTERPRET=1, so that Triton's interpreter executes its kernels"


def _report(package: Path, file: Path) -> str:
    """Returns what a package said in each process.  Raises ConfigError if none imported it."""
    said = [path.read_text(encoding="utf-8") for path in sorted(file.parent.glob(f"{file.name}-*"))]
    if not said:
        raise ConfigError(
            f"{package}: expected the program to import the module that the package patches (see its origin.json), "
            "it did not; a kernel in the program's main file has to move into a module"
        )
    return "\n".join(said)
