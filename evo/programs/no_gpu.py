"""Lets a program for a GPU run on a machine without one, as far as it asks for nothing that only a GPU knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from evo.core.records import Verdict
from fitness.frontend.recording.fakecuda import fake_device
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import JobError
from fitness.suites.on_host import OnHost, seeds_on_host

TARGET = "sm_90"


class ProgramOnHost(OnHost):
    """The mode under which such a program runs.

    Memory that it leaves unwritten, and all that it allocates in a host function, is for results of kernels.
    """

    def __init__(self, in_host: Callable[[], bool]) -> None:
        super().__init__()
        self._in_host = in_host

    def computing(self) -> bool:
        return self._backward or self._in_host()

    def fail(self, verdict: Verdict, message: str) -> JobError:
        return JobError(verdict, f"this machine has no GPU, and the program asks for more than its launches: {message}")


@contextlib.contextmanager
def without_gpu(in_host: Callable[[], bool]) -> Iterator[ProgramOnHost]:
    """Makes PyTorch and Triton of this process say that there is a GPU.  in_host: whether a host function runs."""
    mode = ProgramOnHost(in_host)
    with fake_device(get_target(TARGET), mode), seeds_on_host(), mode.in_backward(), mode:
        yield mode
