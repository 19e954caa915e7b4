"""Reads hardware counters of a plan's launches: NVIDIA Nsight Compute (`ncu`) over `fitness/profile/ncu_replay.py`.

Whole sections are asked for, as chips differ in their metrics.  The section of memory tables would take as long as all
others together (on an H200 5 s of 10): of it `METRICS` are asked for alone.  `READINGS` names what a profile uses.
"""

from __future__ import annotations

import contextlib
import csv
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fitness.cuda.nvidia import find_tool
from fitness.gpu.runner import LOCK_S, LaunchBundle
from fitness.sandbox.layers import python_path

SECTIONS = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats", "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
)  # fmt: skip
# ncu leaves out those that a chip lacks.
METRICS = (
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared{kind}.sum" for kind in ("", "_op_ld", "_op_st")),
    *(f"smsp__inst_executed_op_shared{kind}.sum" for kind in ("", "_ld", "_st")),
    *(f"dram__bytes_{way}.sum" for way in ("read", "write")),
)  # fmt: skip
WALL_S = 300.0  # on the GPU: each launch is replayed for each group of counters.
MOST_S = LOCK_S + 2 * WALL_S  # with the start of torch, which is slow under ncu, and waiting for the GPU.
POLL_S = 0.2

# reading of `fitness.profile.profile` -> metrics that give it; a chip may lack some; the largest one counts.
READINGS: Mapping[str, tuple[str, ...]] = {
    "time": (r"gpu__time_duration\.sum",),
    "dram": (r"(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed",),
    "l2": (r"lts__throughput\.avg\.pct_of_peak_sustained_elapsed",),
    "l1": (r"l1tex__throughput\.avg\.pct_of_peak_sustained_(active|elapsed)",),
    "sm": (r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed",),
    "tensor": (r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_(active|elapsed)",),
    "special": (r"sm__(inst_executed_)?pipe_xu\w*\.avg\.pct_of_peak_sustained_(active|elapsed)",),
    "issue": (r"sm__inst_issued\.avg\.pct_of_peak_sustained_(active|elapsed)",
              r"smsp__issue_active\.avg\.pct_of_peak_sustained_active"),
    "occupancy": (r"sm__maximum_warps_per_active_cycle_pct",),
    "active": (r"sm__warps_active\.avg\.pct_of_peak_sustained_active",),
    "registers": (r"launch__registers_per_thread",),
    "l1_hit": (r"l1tex__t_sector_hit_rate\.pct",),
    "l2_hit": (r"lts__t_sector_hit_rate\.pct",),
    "sector": (r"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld\.pct",),
}  # fmt: skip
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_PROGRESS = ("selected", "not_selected")  # states of a warp that are not stalls
_SECTOR_BYTES = re.compile(r"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld\.ratio")
# Without these a profile would be a guess; the next tier, which says what it is, is better.
_NEEDED = ("time", "dram", "sm", "active")
_DRAM_BYTES = re.compile(r"dram__bytes_(read|write)\.sum")
_CONFLICTS = re.compile(r"l1tex__data_bank_conflicts_pipe_lsu_mem_shared(_op_(ld|st))?\.sum")
_SHARED_ACCESSES = re.compile(r"(smsp|sm)__(sass_)?inst_executed_op_shared(_(ld|st))?\.sum")

# Texts with which ncu says that it may not, or cannot, read counters.
_DENIED = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "==ERROR==")


class NoCounters(Exception):
    """Counters cannot be read here; the message says why."""


Counters = list[tuple[str, dict[str, float]]]  # (kernel, readings) of each launch, in order


class CounterReader:
    """Reads hardware counters on one GPU, of one plan at a time.

    Each plan is executed in a process of its own: ncu writes its table when the process ends.  The next process is
    started ahead, as Python, torch and ncu need seconds for that.
    """

    def __init__(self, gpu: str) -> None:
        """Starts nothing yet. gpu: its UUID."""
        self._gpu = gpu
        self._using = threading.Lock()  # one profiler at a time: several would only keep processors from compiling
        self._next: _Replay | None = None
        self._current: _Replay | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the process of the next plan, unless it is started; nothing without ncu."""
        with self._using, contextlib.suppress(NoCounters):
            self._start()

    def _start(self) -> _Replay:
        if self._next is not None and self._next.ended:  # while it waited, as for lack of memory
            self._next.close()
            self._next = None
        if self._next is None:
            tool = "" if self._closed else find_tool("ncu")
            if not tool:
                raise NoCounters("ncu is not installed")
            try:
                self._next = _Replay(tool, self._gpu)
            except OSError as error:
                raise NoCounters(f"ncu cannot be started: {error}") from error
        return self._next

    def read(self, task: str | os.PathLike[str], bundle: LaunchBundle, case: str) -> Counters:
        """Returns readings of each launch of one case of `bundle`, which must have its choices.  Raises NoCounters.

        task: its folder.  The profiled process takes the GPU lock once it and the profiler have started.
        """
        with self._using:
            self._current, self._next = self._start(), None
            with contextlib.closing(self._current):
                found = self._current.read(os.fspath(task), bundle, case)
            with contextlib.suppress(NoCounters):
                self._start()
            return found

    def close(self) -> None:
        """Ends what is started, also a reading."""
        self._closed = True
        if self._current is not None:
            self._current.kill()
        with self._using:
            if self._next is not None:
                self._next.close()
                self._next = None


class _Replay:
    """A process under ncu that waits for its plan (`fitness.profile.ncu_replay`)."""

    def __init__(self, tool: str, gpu: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="evo-ncu-")
        path, self._log, self._said = (Path(self._folder.name, name) for name in ("plan", "counters.csv", "said.txt"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        with open(self._said, "wb") as said:
            self._process = subprocess.Popen(
                command_line(tool, self._log, [str(path), gpu]),
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=_env(gpu), start_new_session=True,
            )  # fmt: skip

    def read(self, task: str, bundle: LaunchBundle, case: str) -> Counters:
        """Sends the plan and returns its counters.  Raises NoCounters."""
        try:
            self._send(pickle.dumps((task, bundle, case)))
            code = self._process.wait(MOST_S)
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            raise NoCounters(f"ncu did not finish within {MOST_S:g} s") from error
        table = self._log.read_text(errors="replace") if self._log.exists() else ""
        if problem := failure(code, table + self._said.read_text(errors="replace")):
            raise NoCounters(problem)
        if not (found := parse(table)[1:]):  # without the kernel that started the profiler
            raise NoCounters("ncu measured no kernel of the plan")
        return found

    def _send(self, plan: bytes) -> None:
        """Sends the plan once the process asks for it, unless it ends before."""
        end = time.monotonic() + MOST_S
        self._listener.settimeout(POLL_S)
        while not self.ended and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(ConnectionError):  # it ended: its exit code says how
                    connection.settimeout(MOST_S)
                    connection.sendall(plan)
                return

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if not self.ended:  # else its number may be another's
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._listener.close()
        self._folder.cleanup()


def command_line(tool: str, log: Path, arguments: Sequence[str]) -> list[str]:
    """Returns the command line.

    Clocks are left alone: the runner's are the same, and fixing them needs special rights.
    """
    asked = [word for section in SECTIONS for word in ("--section", section)] + ["--metrics", ",".join(METRICS)]
    command = [sys.executable, "-P", "-m", "fitness.profile.ncu_replay", *arguments]
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--log-file", str(log)]
    return [tool, *options, "--profile-from-start", "off", "--kernel-name-base", "function", *asked, *command]


def failure(code: int, said: str) -> str:
    """Returns why a run of ncu gave no counters, "" if it gave some."""
    if "ERR_NVGPUCTRPERM" in said:
        return "no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
    errors = [line.strip() for line in said.splitlines() if any(sign in line for sign in _DENIED)]
    if errors:
        return f"ncu: {errors[0]}"
    if code != 0:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return f"ncu ended with exit code {code}: {(lines or ['it said nothing'])[-1]}"
    return "" if '"Kernel Name"' in said else "ncu measured no kernel"


def parse(text: str) -> Counters:
    """Returns the readings in the table of `ncu --csv --page raw`: a line of names, one of units, one per launch.

    Lines of the profiled program and of ncu itself may stand before it.  Raises NoCounters without a table.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise NoCounters("ncu wrote no table")
    rows = list(csv.reader(lines[start:]))
    header, units = rows[0], rows[1]
    found: Counters = []
    for row in rows[2:]:
        if len(row) != len(header):
            continue
        values = {name: number for name, text in zip(header, row, strict=True) if (number := _number(text)) is not None}
        unit = dict(zip(header, units, strict=True))
        taken = readings(values, unit)
        missing = [name for name in _NEEDED if name not in taken]
        if missing:
            raise NoCounters(f"ncu's table lacks {', '.join(missing)}; it has {', '.join(header[11:])[:500]}")
        found.append((row[header.index("Kernel Name")], taken))
    if not found:
        raise NoCounters("ncu measured no kernel")
    return found


def readings(values: Mapping[str, float], units: Mapping[str, str]) -> dict[str, float]:
    """Returns the raw metrics of one launch as readings: percentages, microseconds, bytes."""
    counters: dict[str, float] = {}
    for reading, patterns in READINGS.items():
        measured = [(values[name], name) for name in values if any(re.fullmatch(p, name) for p in patterns)]
        if measured:
            value, name = max(measured)
            counters[reading] = value * _US.get(units.get(name, ""), 1e-3) if reading == "time" else value
    for name in values:
        if _SECTOR_BYTES.fullmatch(name):
            counters.setdefault("sector", 100 * values[name] / 32)
    states = {m[1]: values[name] for name in values if (m := _STALL.fullmatch(name))}
    # "x_not_issued" counts a part of x once more.
    stalls = {k: v for k, v in states.items() if k not in _PROGRESS and not k.endswith("_not_issued")}
    if sum(stalls.values()) > 0:
        counters |= {f"stall_{kind}": 100 * v / sum(stalls.values()) for kind, v in stalls.items()}
    moved = [values[name] for name in values if _DRAM_BYTES.fullmatch(name)]
    if len(moved) == 2:
        counters["dram_bytes"] = sum(moved)
    conflicts = [values[name] for name in values if _CONFLICTS.fullmatch(name)]
    accesses = [values[name] for name in values if _SHARED_ACCESSES.fullmatch(name)]
    if conflicts and accesses and max(accesses) > 0:
        counters["conflicts"] = max(conflicts) / max(accesses)
    return counters


_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _env(gpu: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": gpu}
