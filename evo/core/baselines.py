"""Names what candidates are timed against: the seed kernel of a task, or PyTorch if the task has no kernel."""

from __future__ import annotations

import enum

from evo.core.errors import ConfigError


class BaselineKind(enum.StrEnum):
    """What speedups of a run are over."""

    SEED = "seed"  # the kernel.py of the task
    EAGER = "eager"  # the reference, called in PyTorch
    COMPILE = "compile"  # the reference, compiled by torch.compile
    EAGER_TF32 = "eager-tf32"  # float32 matrix products in TensorFloat-32
    COMPILE_TF32 = "compile-tf32"

    @property
    def pytorch(self) -> bool:
        """Whether it is a call of PyTorch; else it is the seed kernel."""
        return self is not BaselineKind.SEED

    @property
    def compiled(self) -> bool:
        """Whether `torch.compile` compiles the call."""
        return self in (BaselineKind.COMPILE, BaselineKind.COMPILE_TF32)

    @property
    def tf32(self) -> bool:
        """Whether PyTorch may round float32 operands of matrix products to TensorFloat-32."""
        return self in (BaselineKind.EAGER_TF32, BaselineKind.COMPILE_TF32)

    @property
    def compared(self) -> str:
        """The words after a speedup: "against the seed", "over PyTorch eager (TF32 off)"."""
        return f"over {self.text}" if self.pytorch else "against the seed"

    @property
    def text(self) -> str:
        """The words that state it beside a speedup, e.g. "PyTorch eager (TF32 off)"."""
        if not self.pytorch:
            return "the seed kernel"
        return f"{'torch.compile' if self.compiled else 'PyTorch eager'} (TF32 {'on' if self.tf32 else 'off'})"


PYTORCH = tuple(str(kind) for kind in BaselineKind if kind.pytorch)  # the values of --baseline


def chosen_baseline(wanted: str | None, *, has_kernel: bool, task: str) -> BaselineKind:
    """Returns what a task is timed against.

    wanted: one of PYTORCH, or None for the default: the seed kernel, and PyTorch eager for a task without one.
    Raises ConfigError for another name, and for PyTorch if the task has a kernel.
    """
    if wanted is None:
        return BaselineKind.SEED if has_kernel else BaselineKind.EAGER
    check_baseline(wanted)
    if has_kernel:
        raise ConfigError(
            f"--baseline: expected a task without kernel.py, got {task}, whose speedups are over its seed kernel; "
            "leave --baseline out, or remove kernel.py from a copy of the task"
        )
    return BaselineKind(wanted)


def check_baseline(wanted: str | None) -> None:
    """Raises ConfigError unless the name is one of PYTORCH, or None."""
    if wanted is not None and wanted not in PYTORCH:
        raise ConfigError(f"--baseline: expected one of {', '.join(PYTORCH)}, got {wanted!r}")
