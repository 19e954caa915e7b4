"""Finds NVIDIA's driver and tools on this machine, and tries whether the tools can be used."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
# Folders into which the packages of CUDA and Nsight install them, without changing PATH.
_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
# Arguments with which a tool does its real work on one kernel, and a text that its output has if it could.
_TRIALS = {
    "ncu": (("--metrics", "sm__cycles_elapsed.max", "--launch-count", "1"), "sm__cycles_elapsed.max"),
    "compute-sanitizer": (("--tool", "memcheck"), "ERROR SUMMARY: 0 errors"),
}
TOOLS = tuple(_TRIALS)
_KERNEL = "import torch; torch.ones(1, device='cuda').mul_(2); torch.cuda.synchronize()"
_TRIAL_S = 180.0  # both tools slow down the import of torch and the start of CUDA by much


def driver_version() -> str:
    """Returns the version, e.g. "550.54.15"; "" without a driver."""
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):  # no library, or no driver
            pynvml.nvmlInit()
            return str(pynvml.nvmlSystemGetDriverVersion())
    try:
        words = _KERNEL_MODULE.read_text().partition("\n")[0].split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit()), "of unknown version")


def find_tool(name: str) -> str:
    """Returns the path of one of TOOLS; "" if it is not installed."""
    folders = [folder for pattern in _FOLDERS for folder in sorted(glob.glob(pattern), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders)) or ""


def tool_version(path: str) -> str:
    """Returns the version that the tool at `path` prints, e.g. "2025.1.0.0". Raises OSError or SubprocessError."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return next((word.strip(",()") for word in said.split() if word[0].isdigit() and "." in word), said.strip())


def tool_problem(name: str, path: str) -> str:
    """Returns why the tool at `path`, one of TOOLS, cannot do its work on GPU 0; "" if it can.  Takes many seconds."""
    arguments, sign = _TRIALS[name]
    try:
        run = subprocess.run(
            [path, *arguments, sys.executable, "-c", _KERNEL],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_S,
        )
    except subprocess.TimeoutExpired:
        return f"it did not finish on a small kernel within {_TRIAL_S:g} s"
    said = run.stdout + run.stderr
    if "ERR_NVGPUCTRPERM" in said:
        return "no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
    if run.returncode == 0 and sign in said:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return f"exit code {run.returncode} on a small kernel: {(errors or lines or ['it said nothing'])[-1]}"
