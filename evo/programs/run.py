"""Runs a user's program in a process of its own, watched or with a kernel in place."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo.core.errors import ConfigError
from evo.programs.inside import environment


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: its exit code, its seconds, and what it printed if that was asked for."""

    code: int
    seconds: float
    printed: str = ""


def run_program(
    command: Sequence[str],
    *,
    watch: Path | None = None,
    keep_values: bool = False,
    values: bool = True,
    patches: Sequence[Path] = (),
    report: Path | None = None,
    keep_output: bool = False,
    quiet: bool = False,
) -> ProgramEnd:
    """Runs a command to its end.

    watch: folder for a capture; None: not watched.  values: describe the arguments of calls, too.
    patches: packages with patch.py, each imported after the module that it patches; report: folder for what each says
    of its calls, in a file NUMBER-PID for each process.  keep_output: return what the program prints on standard
    output.  quiet: what it prints there goes to standard error.  Raises ConfigError if it cannot be started.
    """
    settings = None if watch is None else {"folder": str(watch.resolve()), "keep_values": keep_values, "values": values}
    where = "" if report is None else str(report.resolve())
    env = environment({"watch": settings, "patches": [str(patch.resolve()) for patch in patches], "report": where})
    out = subprocess.PIPE if keep_output else sys.stderr.fileno() if quiet else None
    begin = time.perf_counter()
    try:
        done = subprocess.run(list(command), env=env, stdout=out, check=False)
    except OSError as error:
        raise ConfigError(
            f"expected a program that can be started, as in `evo capture -- python train.py`, got {command[0]!r}: "
            f"{error}"
        ) from error
    seconds = time.perf_counter() - begin
    printed = done.stdout.decode(errors="replace") if keep_output else ""
    return ProgramEnd(done.returncode, seconds, printed)


def new_folder(command: Sequence[str]) -> Path:
    """Returns a folder for the capture of a command that does not exist: captures/train-001."""
    words = [word for word in command if word.endswith(".py")] or [w for w in command[1:] if not w.startswith("-")]
    name = Path(words[0]).stem if words else Path(command[0]).name
    parent = Path("captures")
    taken = {path.name for path in parent.glob(f"{name}-*")}
    number = next(n for n in range(1, 10**6) if f"{name}-{n:03}" not in taken)
    return parent / f"{name}-{number:03}"
