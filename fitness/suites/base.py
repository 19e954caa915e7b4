"""What a benchmark suite is: files in a checkout, and a checker that makes a task folder of each.

Evo's own suites are TritonBench-G, TritonBench-T and KernelBench.  A suite of a user has the same parts, and is
registered by `evo.register_suite` (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.sandbox.zygote import Zygote
    from fitness.suites import SuiteFile
    from fitness.suites.check import CheckOutcome, Verifier


class FileChecker(Protocol):
    """Checks files, several at once if several threads call it."""

    def check(self, source: Any) -> CheckOutcome:
        """Make the task folder of a file and take its seed kernel through every stage; how far it came.

        source: one of the suite's files.  The task folder is `folder / source.name` of the suite's `checker`; it stays
        if the outcome is verified.  Raises EvoError only if nothing can be checked at all.
        """
        ...


@dataclass(frozen=True)
class CheckSettings:
    """What the user says about how files are checked.

    seeds: a folder of seed kernels NAME.py that go before those of the suite; None: there is none.
    most_bytes: of inputs, state and outputs of a case; None: the suite's own limit.
    own_seeds: whether the suite's own seed kernels are used; else files without one are of a reference alone.
    """

    seeds: Path | None = None
    most_bytes: int | None = None
    own_seeds: bool = True


class Suite(Protocol):
    """A benchmark suite.  Its object holds no state: it may be used by several threads and processes."""

    @property
    def name(self) -> str:
        """As the command line calls it, for example "kernelbench"."""
        ...

    @property
    def stages(self) -> Sequence[str]:
        """What a file comes through, the first to the last; "verified" is the last one."""
        ...

    @property
    def seed_kernel(self) -> str:
        """What a seed kernel has to define if files have none of their own ("a function `entry`"); else "".

        With one `--seeds` is accepted, and on a GPU PyTorch is timed beside the seed kernels.
        """
        ...

    @property
    def sized(self) -> bool:
        """Whether `--gib` limits the sizes of its files."""
        ...

    def files(self, checkout: Path) -> Sequence[SuiteFile]:
        """The files of a checkout, in the order they are reported.  Raises ConfigError if it is no checkout."""
        ...

    def checker(
        self, folder: Path, target: Target, zygote: Zygote, verifier: Verifier | None, settings: CheckSettings
    ) -> FileChecker:
        """What checks files of the suite.

        folder: where task folders are written.  zygote: runs the jobs of the sandbox; `fitness.suites.check.new_zygote`
        says which.  verifier: verifies on a GPU; None: kernels are interpreted.
        """
        ...
