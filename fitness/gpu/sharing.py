"""Shares one GPU among the backends of several tasks: its properties, and the process that certifies."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from fitness.frontend.target import sm_name
from fitness.gpu.runner import Runner
from fitness.sandbox.zygote import Zygote


class SharedGpu:
    """The state that backends on one GPU share.  Close it after them."""

    def __init__(self, device: int = 0) -> None:
        """Starts nothing yet.  device: CUDA index of the GPU."""
        self.device = device
        self._asking = threading.Lock()
        self._facts: Mapping[str, Any] = {}
        self._eager: Zygote | None = None

    def start(self, runner: Runner) -> Mapping[str, Any]:
        """Starts the runner's process; returns the properties of the GPU (`fitness.cuda.device.DeviceFacts` as a dict).

        The first process measures the ceilings among them; later ones get them, and only load what they need.
        """
        with self._asking:
            if not self._facts:
                self._facts = runner.facts
                return self._facts
        return runner.start(self._facts)

    def eager(self) -> Zygote:
        """Returns the zygote whose children run candidates eagerly.  It starts in the background, at the first call."""
        with self._asking:
            if self._eager is None:
                self._eager = Zygote(sm_name(self._facts["capability"]), ("eager",), self._facts["uuid"])
            return self._eager

    def close(self) -> None:
        if self._eager is not None:
            self._eager.close()
