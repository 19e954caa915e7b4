"""Facts about the process that is watched: versions, GPU, and where a module comes from."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from fitness.tasks.installed import distribution_of


def facts_of_process(device: str) -> dict[str, Any]:
    """Returns what a capture says of its process.  device: "gpu", "interpreter" or "none"."""
    import torch
    import triton

    rank = os.environ.get("RANK")
    return {
        "pid": os.getpid(),
        "argv": list(sys.orig_argv),
        "rank": None if rank is None else int(rank),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "gpu" and torch.cuda.is_initialized() else None,
    }


@functools.cache
def sha256_of(file: str) -> str | None:
    """Returns the SHA-256 of a file; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


def package_of(module: str, file: str) -> dict[str, Any]:
    """Returns the distribution that a module is installed from, and its version; None for both otherwise."""
    name = distribution_of(module, file)
    version = None if name is None else importlib.metadata.version(name)
    return {"package": name, "package_version": version}
