"""Runs compute-sanitizer over a replay of plans: finds memory errors and hazards that equal outputs do not show.

The process it watches is trusted (`fitness/certify/sanitize_process.py`): machine code and plans, no Python of the
candidate.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo.core.records import Case
from fitness.cuda.nvidia import find_tool
from fitness.gpu.runner import LOCK_S, LaunchBundle
from fitness.sandbox.layers import python_path


@dataclass(frozen=True)
class Tool:
    """A tool, and how long it may have the GPU, for which others wait.

    options: of the command; wall_s: the most; enough_s: after so long it begins with no other case.
    """

    options: tuple[str, ...]
    wall_s: int
    enough_s: int


# Errors of API calls are left out: torch causes some when it looks for features of the driver.  The findings of
# racecheck are only noted, and it may take minutes for a kernel of microseconds.
TOOLS = {
    "memcheck": Tool(("--report-api-errors", "no"), 240, 240),
    "racecheck": Tool((), 60, 20),
}
PROGRAM = "compute-sanitizer"
START_S = 60  # for the CUDA context of the watched process, once Python has started: a tool may hang
POLL_S = 0.5  # how often a running tool is looked after
FINISHED = "finished:"  # the process prints it last; without it nothing was shown
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)$", re.MULTILINE)
_FIRST = re.compile(r"^=+ ((?:Invalid|Error|Warning|Misaligned|Race|Potential|Program hit|Target).*)$", re.MULTILINE)


@dataclass(frozen=True)
class SanitizerFinding:
    """The result of one tool.  `problem`: why it could not run, "" if it did; `errors`: how many it counted."""

    tool: str
    problem: str = ""
    errors: int = 0
    text: str = ""


def sanitize(
    tool: str,
    task: Path,
    bundle: LaunchBundle,
    cases: Sequence[Case],
    *,
    seed: str,
    folder: Path,
    gpu: str,
    stop: threading.Event,
    begin: threading.Event,
) -> SanitizerFinding:
    """Runs `tool` over one replay of each case's plan.

    task: folder; gpu: its UUID; folder: for files; stop: ends the tool once it is set.  The process starts at once, and
    takes the GPU lock when it has started and `begin` is set.
    """
    program = find_tool(PROGRAM)
    if not program:
        return SanitizerFinding(tool, "compute-sanitizer is not installed")
    file, of = folder / f"{tool}.pickle", TOOLS[tool]
    later = file.with_suffix(".later")
    later.write_bytes(pickle.dumps((bundle, list(cases), seed)))
    command = [program, "--tool", tool, *of.options, sys.executable, "-m", "fitness.certify.sanitize_process"]
    command += [str(task), str(file), gpu, str(of.wall_s), str(of.enough_s)]
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "CUDA_VISIBLE_DEVICES": gpu,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # every buffer an allocation of its own, with known bounds
    }
    # A session of its own: the tool and the process that it watches are ended together.
    process = subprocess.Popen(
        command,
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    while not (begin.wait(POLL_S) or stop.is_set()):
        pass
    if not stop.is_set():
        later.rename(file)
    seconds = LOCK_S + 2 * of.wall_s
    output = _output(process, seconds, stop)
    if output is None:
        return SanitizerFinding(tool, "stopped" if stop.is_set() else f"not finished after {seconds:g} s")
    return read_output(tool, output.decode(errors="replace"))


def _output(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event) -> bytes | None:
    """Returns what a process wrote until its end.  After `seconds`, or once `stop` is set, ends it and returns None."""
    end = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=POLL_S)[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return None


def read_output(tool: str, output: str) -> SanitizerFinding:
    """Returns the finding in the tool's output.  Errors count even if the process did not reach its end."""
    summary = _SUMMARY.search(output)
    errors = [int(n) for n in re.findall(r"\d+", summary[1])] if summary else []
    if errors and errors[0]:
        first = _FIRST.search(output)
        return SanitizerFinding(
            tool, "", errors[0], f"{summary[1] if summary else ''}; first: {first[1] if first else '?'}"
        )
    if not errors or FINISHED not in output:
        lines = [line for line in output.splitlines() if line.strip()]
        return SanitizerFinding(tool, f"it did not run to its end: {' | '.join(lines[-3:])[-400:]}")
    done = output[output.index(FINISHED) :].splitlines()[0]
    return SanitizerFinding(tool, "", 0, f"{summary[1] if summary else ''}; {done.removeprefix(FINISHED).strip()}")
