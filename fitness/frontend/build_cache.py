"""Builds that were made before, by what decides them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fitness.frontend.kernels import Closure
from fitness.sandbox.scratch import created, opened


class BuildCache:
    """What was compiled for a task: candidates have most of their kernels and configurations in common.

    A build is known by all that decides it: the text of its kernel and of what that calls, the constants in it, the
    arguments, options and target.  So is that it cannot be compiled.  Thread-safe.
    """

    def __init__(self, most: int = 1024) -> None:
        """`most`: builds that are kept, of some ten kilobytes each."""
        self._most = most
        self._builds: OrderedDict[str, tuple[Mapping[str, Any], bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def left_in(self, scratch: Path, keys: Sequence[str]) -> dict[int, dict[str, Any]]:
        """The known ones among the builds, by their place; their cubins are written to `scratch`."""
        found: dict[int, dict[str, Any]] = {}
        with self._lock:
            for place, key in enumerate(keys):
                if key in self._builds:
                    self._builds.move_to_end(key)
                    build, cubin = self._builds[key]
                    found[place] = dict(build)
                    if cubin:
                        _leave(scratch / f"{key}.cubin", cubin)
                        found[place]["cubin"] = f"{key}.cubin"
        return found

    def add(self, scratch: Path, builds: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes in builds by their keys; their cubins are in `scratch`.  Those that failed have none.

        Raises `fitness.sandbox.scratch.LeftError` where what lies there is none.
        """
        new = {k: (b, cubin_of(scratch, b) if "cubin" in b else b"") for k, b in builds.items() if k}
        with self._lock:
            self._builds |= new
            while len(self._builds) > self._most:
                self._builds.popitem(last=False)


def _leave(path: Path, cubin: bytes) -> None:
    with created(path) as file:
        file.write(cubin)


def cubin_of(scratch: Path, build: Mapping[str, Any]) -> bytes:
    """The machine code of a build, as the job that compiled it left it.  Raises LeftError."""
    with opened(scratch / build["cubin"]) as file:
        return file.read()


def build_key(
    kernels: Mapping[str, Closure], constants: Mapping[str, Any], target: str, launch: Mapping[str, Any]
) -> str:
    """The name of a launch's build, "" where it cannot be known."""
    if launch["kernel"] not in kernels:
        return ""
    kernel = kernels[launch["kernel"]]
    used = {name: value for name, value in constants.items() if name in kernel.names}
    decisive = json.dumps(
        [kernel.digest, used, target, launch["kernel"], launch["args"], launch["options"]], sort_keys=True
    )
    # A function that is passed to a kernel, or that a constant stands for, is part of neither's text.
    return "" if '"jit"' in json.dumps([used, launch["args"]]) else sha256(decisive.encode()).hexdigest()[:32]
