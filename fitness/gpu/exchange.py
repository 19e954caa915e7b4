"""Writes and reads arguments and results as files of raw bytes, between processes that do not trust each other.

A tensor is a file with its elements, row-major, and a description: {"file", "dtype", "shape", "strides"}. Anything else
is {"value": itself}. The reader checks the description: it may come from a process with untrusted code in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fitness.frontend.memory import assign, contents
from fitness.frontend.plan import ITEMSIZE
from fitness.gpu.eager_answers import MalformedAnswer
from fitness.gpu.eager_answers import described as checked
from fitness.sandbox.scratch import LeftError


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
        found = checked(described, "what was to be read")
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


STRIDED_LIMIT = 64  # elements reached over for each element held: padded rows, not traps


def _read(path: Path, size: int) -> np.ndarray:
    """Returns `size` bytes of a regular file of just that size."""
    try:
        return contents(path, size)
    except LeftError as error:
        raise ExchangeError(str(error)) from error
