"""Watches a part of a program, from Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from evo.core.errors import ConfigError
from evo.programs.inside import VARIABLE, environment


@contextlib.contextmanager
def capture(folder: str | os.PathLike[str], *, keep_values: bool = False) -> Iterator[Path]:
    """Watches the launches of Triton kernels inside the block, and of Python processes that it starts.

    folder: a new folder for the capture.  keep_values: keep values that cannot be drawn.  Yields the folder as a path;
    `evo tasks new NAME --from FOLDER KERNEL` reads it after the block.  Raises ConfigError if the folder has a capture,
    or if this process is watched already.
    """
    from evo.programs.watch import Watcher

    path = Path(folder).resolve()
    if any(path.glob("process-*.json")):
        raise ConfigError(f"evo.capture: expected a new folder, but {path} has a capture; choose another")
    if VARIABLE in os.environ:
        raise ConfigError("evo.capture: expected a program that is not watched yet; leave out one of the two captures")
    settings = {"folder": str(path), "keep_values": keep_values, "values": True}
    inherited = environment({"watch": settings, "patches": [], "report": ""})
    watcher = Watcher(path, keep_values)
    with mock.patch.dict(os.environ, inherited):
        watcher.start()
        try:
            yield path
        finally:
            watcher.stop()
