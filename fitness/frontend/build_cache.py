"""Keeps builds, so that a kernel that was compiled before is not compiled again."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fitness.frontend.kernels import KernelSource
from fitness.sandbox.scratch import created, opened


class BuildCache:
    """The latest builds of a task: its candidates have most of their kernels and configurations in common.

    The key of a build (`build_key`) covers all that decides it: the text of its kernel and of what that calls, the
    constants in it, the arguments, options and target.  Failed builds are kept too.  Thread-safe.
    """

    def __init__(self, most: int = 1024) -> None:
        """most: how many builds are kept; each takes some ten kilobytes."""
        self._most = most
        self._builds: OrderedDict[str, tuple[Mapping[str, Any], bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def left_in(self, scratch: Path, keys: Sequence[str]) -> dict[int, dict[str, Any]]:
        """The cached builds of `keys`, by position in `keys`; their cubins are written to `scratch`."""
        found: dict[int, dict[str, Any]] = {}
        with self._lock:
            for position, key in enumerate(keys):
                if key in self._builds:
                    self._builds.move_to_end(key)
                    build, cubin = self._builds[key]
                    found[position] = dict(build)
                    if cubin:
                        with created(scratch / f"{key}.cubin") as file:
                            file.write(cubin)
                        found[position]["cubin"] = f"{key}.cubin"
        return found

    def add(self, scratch: Path, builds: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds builds by their keys; their cubins are in `scratch`.

        Builds that failed, or that ended before it, have none.

        Raises `fitness.sandbox.scratch.LeftError` if a cubin is missing or is not a regular file.
        """
        new = {k: (b, cubin_of(scratch, b) if "cubin" in b else b"") for k, b in builds.items() if k}
        with self._lock:
            self._builds |= new
            while len(self._builds) > self._most:
                self._builds.popitem(last=False)


def cubin_of(scratch: Path, build: Mapping[str, Any]) -> bytes:
    """The machine code of a build, from the file that the compile job wrote.  Raises LeftError."""
    with opened(scratch / build["cubin"]) as file:
        return file.read()


def build_key(
    kernels: Mapping[str, KernelSource],
    constants: Mapping[str, Any],
    target: str,
    launch: Mapping[str, Any],
    *,
    machine_code: bool = True,
) -> str:
    """The cache key of a launch's build, "" if the launch does not determine its build."""
    if launch["kernel"] not in kernels:
        return ""
    kernel = kernels[launch["kernel"]]
    used = {name: value for name, value in constants.items() if name in kernel.names}
    decisive = json.dumps(
        [kernel.digest, used, target, launch["kernel"], launch["args"], launch["options"], machine_code],
        sort_keys=True,
    )
    # The text of a function that is passed to a kernel, or is the value of a constant, is not part of the key.
    return "" if '"jit"' in json.dumps([used, launch["args"]]) else sha256(decisive.encode()).hexdigest()[:32]
