"""Checks the answer of a process with untrusted code to one call, before anything uses it.

Any JSON may come.  The fields that are used are copied and checked, and everything else is dropped.  A malformed answer
is the candidate's fault, and `MalformedAnswer` says what is wrong with it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from fitness.frontend.plan import ITEMSIZE, MOST_BYTES
from fitness.sandbox.jobs import told

MOST_US = 1e9  # of a call: no process may take so long


class MalformedAnswer(ValueError):
    """An answer that is malformed."""


def checked(raw: Any, *, timed: bool = False) -> dict[str, Any]:
    """Returns the checked answer, in the form of `fitness.certify.eager.job`.

    timed: whether it must have "samples_us". Raises MalformedAnswer.
    """
    if not isinstance(raw, Mapping):
        raise MalformedAnswer(f"its answer is {_shown(raw)}")
    if "error" in raw:
        return {"error": _error(raw["error"])}
    structure, outputs, modified = (_field(raw, name) for name in ("structure", "outputs", "modified"))
    if not isinstance(structure, str):
        raise MalformedAnswer(f"the structure of its results is {_shown(structure)}")
    if not isinstance(outputs, list):
        raise MalformedAnswer(f"its outputs are {_shown(outputs)}")
    answer = {
        "structure": structure,
        "outputs": [described(output, f"output {number}") for number, output in enumerate(outputs)],
        "modified": _whole(modified, "the modified arguments"),
    }
    return {**answer, "samples_us": _times(_field(raw, "samples_us"))} if timed else answer


def described(raw: Any, what: str) -> dict[str, Any]:
    """Returns the checked description of a tensor (`put`).  Raises MalformedAnswer."""
    if not isinstance(raw, Mapping) or "file" not in raw:
        raise MalformedAnswer(f"{what} is no tensor: {_shown(raw)}")
    file, dtype, shape, strides = (_field(raw, name) for name in ("file", "dtype", "shape", "strides"))
    if not isinstance(file, str) or not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise MalformedAnswer(f"{what} is of dtype {_shown(dtype)} in the file {_shown(file)}")
    shape, strides = (_whole(numbers, f"shape and strides of {what}") for numbers in (shape, strides))
    if len(shape) != len(strides):
        raise MalformedAnswer(f"{what} has {len(shape)} dimensions and {len(strides)} strides")
    return {"file": file, "dtype": dtype, "shape": shape, "strides": strides}


def _error(raw: Any) -> dict[str, Any]:
    try:
        error = told(raw)
    except ValueError as why:
        raise MalformedAnswer(f"it tells of a failure that makes no sense: {why}: {_shown(raw)}") from why
    return {"verdict": error.verdict, "message": error.message, "line": error.line}


def _field(raw: Mapping[str, Any], name: str) -> Any:
    if name not in raw:
        raise MalformedAnswer(f"{name!r} is missing in {_shown(raw)}")
    return raw[name]


def _whole(raw: Any, what: str) -> list[int]:
    """Returns whole numbers that tensors can have: a process can address them."""
    if not isinstance(raw, list) or not all(type(n) is int and 0 <= n <= MOST_BYTES for n in raw):
        raise MalformedAnswer(f"{what} are {_shown(raw)}")
    return raw


def _times(raw: Any) -> list[float]:
    if not isinstance(raw, list) or not all(isinstance(t, float) and 0 < t < MOST_US for t in raw):
        raise MalformedAnswer(f"its times are {_shown(raw)}")
    return raw


def _shown(raw: Any) -> str:
    """Returns the first characters of a value of any size and depth."""
    return reprlib.repr(raw)
