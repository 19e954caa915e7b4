"""What runs inside a program that evo started: watches it, or puts a kernel in place, as EVO_PROGRAM says.

EVO_PROGRAM is a JSON object:

    {"watch": {"folder": for the files of the capture, "keep_values": whether values that cannot be drawn are kept,
               "values": whether arguments are described} or null,
     "patches": folders of packages with patch.py,
     "report": folder for what packages say of their calls at the end, or "": a file NUMBER-PID for each package and
               process}
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from evo.programs.imports import ImportWatch

VARIABLE = "EVO_PROGRAM"
BOOTSTRAP = Path(__file__).parent / "bootstrap"


def environment(program: dict[str, Any]) -> dict[str, str]:
    """Returns the environment of a process in which Python does what `program` says."""
    inherited = dict(os.environ)
    if inherited.get("PYTHONSAFEPATH") == "evo":  # `python -m evo` set it for evo's own processes
        del inherited["PYTHONSAFEPATH"]
    before = inherited.get("PYTHONPATH")
    path = os.pathsep.join([str(BOOTSTRAP), *([before] if before else [])])
    return {**inherited, "PYTHONPATH": path, VARIABLE: json.dumps(program)}


def start(text: str) -> None:
    """Does what the variable says, once the modules that it needs are imported."""
    program = json.loads(text)
    if program["watch"]:
        _start_watch(program["watch"])
    for number, folder in enumerate(program["patches"]):
        report = Path(program["report"], str(number)) if program["report"] else None
        _start_patch(Path(folder), report)


# --- watching --------------------------------------------------------------------------------------------------------


def _start_watch(settings: dict[str, Any]) -> None:
    """Starts the watcher after the import of torch if it is without a GPU, else after that of Triton."""
    found: list[Any] = []
    starting = False

    def after(module: ModuleType) -> None:
        nonlocal starting
        if found:
            found[0].scan(module)
        elif not starting and (module.__name__ == "triton" or (module.__name__ == "torch" and without_device(module))):
            starting = True  # its own imports come here, too
            from evo.programs.watch import Watcher

            watcher = Watcher(Path(settings["folder"]), settings["keep_values"], settings["values"])
            watcher.start()
            found.append(watcher)
            at_end(watcher.write)

    ImportWatch(after).__enter__()


def without_device(torch: ModuleType) -> bool:
    """Returns whether torch sees no GPU.  Asks NVML, since a process that asked CUDA cannot be forked any more."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    with mock.patch.dict(os.environ, PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        return not torch.cuda.is_available()


def at_end(write: Any) -> None:
    """Calls `write` at the end of this process, and of processes that are forked from it."""
    atexit.register(write)  # not called in processes that multiprocessing forks
    multiprocessing.util.register_after_fork(
        write, lambda _: multiprocessing.util.Finalize(None, write, exitpriority=-9)
    )


# --- patching --------------------------------------------------------------------------------------------------------


def _start_patch(folder: Path, report: Path | None) -> None:
    """Imports patch.py of a package after the module that it patches.  report: see `_write_report`."""
    origin = json.loads((folder / "origin.json").read_text(encoding="utf-8"))

    def after(_: ModuleType) -> None:
        sys.path.append(str(folder.parent))
        patch = importlib.import_module(f"{folder.name}.patch")
        if report is not None:
            _write_report(patch, report)
            at_end(lambda: _write_report(patch, report))

    ImportWatch(after, only=origin["module"]).__enter__()


def _write_report(patch: ModuleType, file: Path) -> None:
    """Writes what a package says of its calls in this process to FILE-PID; a forked one has its parent's calls too."""
    text = patch.report() if hasattr(patch, "report") else f"{patch.__name__} was imported"
    with contextlib.suppress(OSError):  # the comparison is over
        file.with_name(f"{file.name}-{os.getpid()}").write_text(text, encoding="utf-8")
