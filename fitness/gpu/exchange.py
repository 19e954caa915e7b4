"""Exchanges arguments and results between processes that do not trust each other: files of raw bytes, and answers.

A tensor is a file with its elements, row-major, and a description: {"file", "dtype", "shape", "strides"}. Anything else
is {"value": itself}.  The reader checks the description: it may come from a process with untrusted code in it.

An answer says what one call returned (`checked_answer`).  Any JSON may come.  The fields that are used are copied and
checked, and everything else is dropped.  A malformed answer is the candidate's fault.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fitness.frontend.memory import assign, contents
from fitness.frontend.plan import ITEMSIZE, MOST_BYTES
from fitness.sandbox.jobs import reported_error
from fitness.sandbox.scratch import LeftError

STRIDED_LIMIT = 64  # elements reached over for each element held: padded rows, not traps
MOST_US = 1e9  # of a call: no process may take so long


class ExchangeError(ValueError):
    """A description or a file that is malformed."""


def put(value: Any, path: Path) -> dict[str, Any]:
    """Returns the description of `value`; the elements of a tensor are written to `path`."""
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    data = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    data.numpy().tofile(path)
    dtype = str(value.dtype).removeprefix("torch.")
    return {"file": path.name, "dtype": dtype, "shape": list(value.shape), "strides": list(value.stride())}


def take(described: Mapping[str, Any], folder: Path, device: torch.device | str) -> Any:
    """Returns the value described, tensors on `device` with the strides described.  Raises ExchangeError."""
    if "value" in described and "file" not in described:
        return described["value"]
    try:
        found = checked_tensor(described, "what was to be read")
    except MalformedAnswer as error:
        raise ExchangeError(str(error)) from error
    name, dtype, shape, strides = (found[key] for key in ("file", "dtype", "shape", "strides"))
    if Path(name).name != name:
        raise ExchangeError(f"the tensor in {name!r:.80}, which is no name of a file")
    data = torch.from_numpy(_read(folder / name, math.prod(shape) * ITEMSIZE[dtype]))
    if not data.numel():
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)
    dense = data.to(device).view(getattr(torch, dtype)).reshape(shape)
    if dense.stride() == tuple(strides):
        return dense
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if reach > STRIDED_LIMIT * dense.numel():
        raise ExchangeError(f"strides {strides} of shape {shape} reach over {reach} elements")
    strided = torch.empty_strided(shape, strides, dtype=dense.dtype, device=device)
    assign(strided, dense)
    return strided


def _read(path: Path, size: int) -> np.ndarray:
    """Returns `size` bytes of a regular file of just that size."""
    try:
        return contents(path, size)
    except LeftError as error:
        raise ExchangeError(str(error)) from error


# --- answers ---------------------------------------------------------------------------------------------------------


class MalformedAnswer(ValueError):
    """An answer that is malformed."""


def checked_answer(raw: Any, *, timed: bool = False) -> dict[str, Any]:
    """Returns the checked answer, in the form of `fitness.certify.eager.job`.

    timed: whether it must have "samples_us".  Raises MalformedAnswer.
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
        "outputs": [checked_tensor(output, f"output {number}") for number, output in enumerate(outputs)],
        "modified": _whole(modified, "the modified arguments"),
    }
    return {**answer, "samples_us": _times(_field(raw, "samples_us"))} if timed else answer


def checked_tensor(raw: Any, what: str) -> dict[str, Any]:
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
        error = reported_error(raw)
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
