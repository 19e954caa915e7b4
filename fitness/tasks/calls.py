"""Describes the calls of the entry that are recorded for a task: shapes, dtypes, and integer values for the trace."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from evo.core.records import Case
from fitness.sandbox.scratch import created
from fitness.tasks.task import Task

CPU = "@cpu"


class Calls:
    """All cases of a task at the target's sizes (`case`) and at the sizes executed on a CPU (`case@cpu`).

    folder: place for the files of integer inputs; by default among the system's temporary files.
    """

    def __init__(self, task: Task, folder: Path | None = None) -> None:
        self.task = task
        self.tune: list[Case] = [c for c in task.cases if c.role == "tune"]
        self._folder = tempfile.TemporaryDirectory(dir=folder, prefix="integers-")
        self._integers: dict[str, dict[int, Path]] = {}

    @cached_property
    def _described(self) -> dict[str, list[dict[str, Any]]]:
        return {
            name: self.describe(case)
            for c in self.task.cases
            for name, case in ((c.name, c), (c.name + CPU, c.on_cpu()))
        }

    def described(self) -> dict[str, list[dict[str, Any]]]:
        """Call name -> description of each argument, in the recorder's format."""
        return self._described

    def describe(self, case: Case) -> list[dict[str, Any]]:
        """Descriptions of the arguments at `case.axes`; the case may be one that the task does not have."""
        return [_describe(value) for value in self.arguments(case)]

    def arguments(self, case: Case) -> tuple:
        """The inputs of `case`, as fake tensors if the task's `inputs` can make them."""
        generator = torch.Generator().manual_seed(0)
        try:
            with quiet(), FakeTensorMode():
                return self.task.inputs(case, generator)
        except DataDependentOutputException:  # inputs() reads values that it drew: then it must draw them.
            return self.task.inputs(case, torch.Generator().manual_seed(0))

    def give_integers(self, name: str, scratch: Path) -> dict[str, str]:
        """Copies the integer inputs of a case into `scratch`, a job's folder; returns {argument index: file name}.

        Integers may be indices that decide which addresses a kernel touches, so the trace needs their values.  It does
        not need those of floats.  The files are not linked: a job can write to its folder, and the next candidate must
        get the same values.
        """
        if name not in self._integers:
            self._integers[name] = self._write_integers(next(c for c in self.task.cases if c.name == name))
        for path in self._integers[name].values():
            with open(path, "rb") as values, created(scratch / path.name) as copy:
                shutil.copyfileobj(values, copy, 1 << 20)
        return {str(index): path.name for index, path in self._integers[name].items()}

    def _write_integers(self, case: Case) -> dict[int, Path]:
        if not any(_is_integer(v) for v in self.arguments(case)):
            return {}
        files = {}
        for index, value in enumerate(self.task.inputs(case, torch.Generator().manual_seed(0))):
            if _is_integer(value):
                path = Path(self._folder.name) / f"{case.name}-{index}.npy"
                np.save(path, value.contiguous().numpy())
                files[index] = path
        return files


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses what torch writes to stderr about errors that it also raises."""

    def nothing(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(nothing)
    try:
        yield
    finally:
        logger.removeFilter(nothing)


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point


def _describe(value: Any) -> dict[str, Any]:
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    dtype = str(value.dtype).removeprefix("torch.")
    return {"tensor": {"shape": list(value.shape), "strides": list(value.stride()), "dtype": dtype}}
