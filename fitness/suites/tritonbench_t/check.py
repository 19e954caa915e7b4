"""Takes a file of TritonBench-T through every stage: its function's calls captured, then a seed kernel checked.

A file has a PyTorch function in the place of kernels, which is the reference.  A seed kernel is a function of the same
name and parameters.  Files are the user's own and trusted, like a task.py; their tests run only in the capture job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch

from evo.core.errors import TaskError
from evo.core.records import Case
from fitness.suites import seeded
from fitness.suites.check import CheckOutcome, first_line
from fitness.suites.folder import write_folder, write_task
from fitness.suites.tritonbench import TritonBenchFile
from fitness.suites.tritonbench_t.seeds import seed_kernel
from fitness.suites.values import span
from fitness.tasks.task import Task, load_task, run_reference
from fitness.verify.compare import same_but_rounding
from fitness.verify.oracle import VARIANTS, make_inputs

TITLE = "TritonBench-T"
DRAWS = 4  # inputs that are tried for a result that depends on them


class TritonBenchTChecker(seeded.SeededChecker):
    """Checks like SeededChecker; the reference is the file's function."""

    launching = False

    def _capture(
        self, source: TritonBenchFile, scratch: Path, outcome: CheckOutcome, most_bytes: int
    ) -> list[Mapping[str, Any]]:
        """Returns the calls whose result a kernel can be compared with.  Timed calls are large, and left to the GPU."""
        captured = super()._capture(source, scratch, outcome, most_bytes)
        good = []
        for call in captured:
            try:
                task = self._task(source, [call], scratch)
                if not call["timed"]:
                    _check_comparable(task)
                good.append(call)
            except TaskError as error:
                outcome.why_left_out = outcome.why_left_out or first_line(str(error))
        if all(call["timed"] for call in good):
            raise TaskError(outcome.why_left_out or "its tests make no call that PyTorch can be asked about")
        outcome.left_out = len(captured) - len(good)
        return good

    def _task(self, source: TritonBenchFile, calls: Sequence[Mapping[str, Any]], scratch: Path) -> Task:
        folder, kernel = self._root / source.name, self._seed_of(source, seed_kernel)
        title = f"{TITLE}, {source.name}.py: the calls of its own tests"
        write_folder(folder, title, kernel or "", calls, scratch, source.kernels)
        task = load_task(folder, tried=True)
        small = [case for case, call in zip(task.cases, calls, strict=True) if not call["timed"]]
        write_task(folder, _written(task, small), stress=all(map(_is_data, calls)) and _takes_any_values(task, small))
        return load_task(folder, tried=len(small) < len(calls))

    def _all_of(
        self, source: TritonBenchFile, calls: Sequence[Mapping[str, Any]], scratch: Path, outcome: CheckOutcome
    ) -> None:
        task = self._task(source, calls, scratch)
        if task.seed_source is None:
            self._check_reference(task, outcome)
        else:
            self._check_kernel(task, outcome)


def _is_data(call: Mapping[str, Any]) -> bool:
    """Returns whether other values are possible: no floating tensor is a table or a mask, and none has gaps."""
    tensors = (a["tensor"] for a in call["arguments"] if "tensor" in a)
    floating = [t for t in tensors if "float" in t["dtype"]]
    return all(t["rule"] != "kept" and span(t["shape"], t["strides"]) == prod(t["shape"]) for t in floating)


def _takes_any_values(task: Task, cases: Sequence[Case]) -> bool:
    """Returns whether the function accepts all variants of its inputs."""
    try:
        for case, variant in product(cases, VARIANTS):
            run_reference(task, make_inputs(task, case, 0, variant))
    except TaskError:
        return False
    return True


def _written(task: Task, cases: Sequence[Case]) -> list[str]:
    """Returns the names of the arguments that the function writes to."""
    found = set()
    for case in cases:
        arguments, again = (make_inputs(task, case, 0) for _ in range(2))
        run_reference(task, arguments, copy=False)
        named = zip(task.parameters, arguments, again, strict=True)
        found |= {name for name, argument, before in named if _differ([argument], [before])}
    return [name for name in task.parameters if name in found]


def _check_comparable(task: Task) -> None:
    """Raises TaskError if its only case has other results for the same inputs, or the same for all."""
    (case,) = task.cases
    results = [run_reference(task, make_inputs(task, case, seed))[1] for seed in (0, *range(DRAWS))]
    if _differ(results[0], results[1]):
        raise TaskError("its function gives other results for the same arguments: it draws random numbers")
    if not any(_differ(results[0], other) for other in results[2:]):
        raise TaskError("its result is the same whatever the inputs: a kernel need not read them")


def _differ(a: Sequence[Any], b: Sequence[Any]) -> bool:
    tensors = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, torch.Tensor)]
    return not all(x.shape == y.shape and same_but_rounding(x, y) for x, y in tensors)
