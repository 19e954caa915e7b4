"""Draws inputs for a candidate in another process, and compares the results that it left: for certificates.

Lives in the runner process.  The candidate's process gets inputs as files and leaves outputs as files.  What is
expected is computed here, after it has ended.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from evo.core.records import Case, Verdict
from evo.core.text import plain, short
from fitness.frontend.memory import DTYPES
from fitness.gpu.exchange import ExchangeError, MalformedAnswer, checked_answer, put, take
from fitness.sandbox.jobs import reported_error
from fitness.tasks.task import Task
from fitness.verify import compare, oracle


class Planned(Protocol):
    """Returns outputs of the plan, executed in new memory that is poisoned, or filled with the byte `fill`."""

    def __call__(self, arguments: Sequence[Any], fill: int | None = None) -> Sequence[torch.Tensor]: ...


@dataclass(frozen=True)
class Form:
    """The form of a tensor by its description, before any of it is read."""

    shape: torch.Size
    dtype: torch.dtype

    @staticmethod
    def of(described: Mapping[str, Any]) -> Form:
        return Form(torch.Size(described["shape"]), DTYPES[described["dtype"]])


Expect = Callable[[Case, int], oracle.Expected | None]  # case, key -> what is right
Reading = Callable[[int], contextlib.AbstractContextManager[None]]  # given the bytes that are read inside


@dataclass(frozen=True)
class Match:
    """How the results for one case compare."""

    case: str
    verdict: Verdict = Verdict.OK
    message: str = ""
    max_error: float = 0.0  # in units of the budget, like `evo.core.records.Check`
    bitwise: bool = False  # whether they were compared with the plan's and equal to the bit


def write(arguments: Sequence[Any], path: Path) -> list[dict[str, Any]]:
    """Writes the arguments of a case into files `path`.0, `path`.1, ... and returns their descriptions."""
    return [put(value, path.with_name(f"{path.name}.{i}")) for i, value in enumerate(arguments)]


def compare_answer(
    task: Task,
    case: Case,
    key: int,
    answer: Mapping[str, Any],
    folder: Path,
    device: torch.device | str,
    planned: Planned | None = None,
    expect: Expect | None = None,
    reading: Reading = lambda nbytes: contextlib.nullcontext(),
) -> Match:
    """What `fitness.certify.eager.job` answered for the inputs that `write` wrote, against oracle and plan.

    planned: executes the plan; given where outputs must equal the plan's to the bit.  expect: in the oracle's place.
    reading: entered while files are read.
    """
    try:
        answer = checked_answer(answer)
    except MalformedAnswer as error:
        return Match(case.name, Verdict.RUNTIME_ERROR, short(f"its results cannot be read: {error}"))
    if "error" in answer:
        return _raised(case.name, answer["error"])
    if answer["modified"]:
        return Match(case.name, Verdict.WRONG, f"argument {answer['modified'][0]} was modified; copy it instead")
    expected = oracle.expect(task, case, key, device=device) if expect is None else expect(case, key)
    if expected is None:
        return Match(case.name, Verdict.INFRASTRUCTURE, "the reference is not finite, nothing can be compared")
    # The form comes first: outputs that are too large, too small or too many are not read.
    structure, strides = plain(answer["structure"]), [tuple(output["strides"]) for output in answer["outputs"]]
    forms = [Form.of(output) for output in answer["outputs"]]
    wrong = compare.wrong_form(expected, structure, forms, strides)
    if wrong is not None:
        return Match(case.name, Verdict.WRONG, short(wrong), math.inf)
    try:
        with reading(sum(form.shape.numel() * form.dtype.itemsize for form in forms)):
            outputs = [take(output, folder, device) for output in answer["outputs"]]
    except ExchangeError as error:
        return Match(case.name, Verdict.RUNTIME_ERROR, short(f"its results cannot be read: {error}"))
    distance, wrong = compare.compare(expected, structure, outputs, strides)
    if wrong is not None:
        return Match(case.name, Verdict.WRONG, wrong, distance)
    if planned is None:
        return Match(case.name, max_error=distance)
    again = functools.partial(oracle.make_inputs, task, case, key, device=device)
    first = planned(again())
    if compare.same_outputs(first, outputs):
        return Match(case.name, max_error=distance, bitwise=True)
    if task.reference is None and compare.same_where_defined(outputs, first, planned(again(), fill=0)):
        return Match(case.name, max_error=distance)
    message = "other results than those of the recorded plan on the same inputs"
    return Match(case.name, Verdict.WRONG, message, distance)


def _raised(case: str, error: Any) -> Match:
    """Returns the failure that the candidate's own process reported: it may choose among the bad verdicts only."""
    try:
        failure = reported_error(error)
    except ValueError as why:
        return Match(case, Verdict.RUNTIME_ERROR, short(f"its process told of a failure that makes no sense: {why}"))
    message = f"line {failure.line}: {failure.message}" if failure.line else failure.message
    return Match(case, failure.verdict, short(message))
