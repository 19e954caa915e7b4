"""Describes tensors that a test gave to a kernel, and draws new values like them.

A tensor is described by its form and by a rule for its values:

    constant    every element had this value, and has it again
    quantiles   floating values: drawn from the distribution that was seen, between its quantiles
    randint     whole numbers: drawn from [low, high), if the test drew them at random or they are quantised data;
                32 and 64-bit ones without repetition if there are enough: they may be indices of stores
                with a "sentinel", one negative number has that "share" (labels that are ignored)
    randperm    a permutation of 0 .. n-1, if the test drew one
    arange      whole numbers from "start" by "step", as they were seen
    kept        the values that were seen: indices, lengths, masks and tables, which mean something
    shuffled    the values that were seen in another order, if a call has nothing else that can be drawn

Drawn values fill the storage below the tensor, so any strides come out unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

QUANTILES = 64  # pieces of the distribution
SAMPLE = 1 << 18  # values that it is taken from
MOST_READ = 1 << 24  # values that are looked at; of more, some evenly spread ones
FEW = 8  # different values or fewer: a mask or a table, not data
DATA = 64  # least elements with which data differs from a table
INDEX_LIMIT = 1 << 24  # whole numbers beyond this are packed data: no tensor of a test has as many rows
# Results of kernels are unknown, because launches are not made (and NaN if something was divided by them).
COMPUTED = {"rule": "quantiles", "values": [0.0, 1.0]}
MOST_DISTINCT = 1 << 20  # whole numbers that are shuffled to draw different ones
_INDICES = (torch.int32, torch.int64)
_QUANTISED = (torch.int8, torch.uint8)


def describe(tensor: torch.Tensor, drawn: Mapping[str, Any] | None, folder: Path | None, name: str) -> dict[str, Any]:
    """Returns the form of `tensor` and the rule for its values.

    drawn: the rule if it is known how the test made it.  Kept values go to `folder`/`name`.npy; without a folder they
    are not kept, and the rule has no file.
    """
    form = {
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    flat = tensor.detach().as_strided((span(tensor.shape, tensor.stride()),), (1,))
    return {**form, **_rule(flat, drawn, folder, name)}


def span(shape: Any, strides: Any) -> int:
    """Returns the elements of storage from the first to the last that a window touches."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _rule(flat: torch.Tensor, drawn: Mapping[str, Any] | None, folder: Path | None, name: str) -> dict[str, Any]:
    if not flat.numel():
        return {"rule": "constant", "value": 0}
    first, seen = flat[0].item(), _comparable(flat[:: -(-flat.numel() // MOST_READ)])
    if bool((seen == first).all()):
        return dict(drawn) if drawn and drawn["rule"] == "quantiles" else {"rule": "constant", "value": first}
    if drawn is not None:
        return dict(drawn)
    if flat.dtype.is_floating_point and bool(seen.isnan().any()):
        return dict(COMPUTED)
    if flat.dtype.is_floating_point:
        return _floating(flat) or _kept(flat, folder, name)
    if flat.dtype is not torch.bool and _is_data(flat):
        return {"rule": "randint", "low": int(flat.min()), "high": int(flat.max()) + 1}
    return _kept(flat, folder, name)


def _comparable(flat: torch.Tensor) -> torch.Tensor:
    return flat.float() if flat.dtype.itemsize == 1 and flat.dtype.is_floating_point else flat


def _floating(flat: torch.Tensor) -> dict[str, Any] | None:
    """Returns quantiles, or None if the values are not data: not finite, or few different ones."""
    step = -(-flat.numel() // SAMPLE)
    values = flat[::step].double()
    if not bool(torch.isfinite(values).all()):
        return None
    if flat.numel() >= DATA and len(values.unique()) <= FEW:
        return None
    ordered = values.sort().values
    pieces = min(QUANTILES, len(ordered) - 1)
    places = torch.linspace(0, len(ordered) - 1, pieces + 1, dtype=torch.float64).round().long()
    return {"rule": "quantiles", "values": ordered[places].tolist()}


def _is_data(flat: torch.Tensor) -> bool:
    """Returns whether whole numbers are packed or quantised data, in which nothing is an index."""
    if int(flat.abs().max() if flat.dtype.is_signed else flat.max()) >= INDEX_LIMIT:
        return True
    return flat.dtype in _QUANTISED and flat.numel() >= DATA and len(flat.unique()) > FEW


def structure(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Returns a rule for whole numbers of which nothing is known but their values; None if they mean something else.

    Arithmetic progressions and permutations are seen as such.  Many different numbers that are not in order are drawn
    from their range: labels, tokens, rows of a table.
    """
    if tensor.dtype.is_floating_point or tensor.dtype is torch.bool or tensor.numel() < 2:
        return None
    flat = tensor.detach().reshape(-1)
    if len(flat) > MOST_READ:
        return {"rule": "randint", "low": int(flat.min()), "high": int(flat.max()) + 1}
    flat = flat.long()
    step = int(flat[1] - flat[0])
    if step and bool((flat.diff() == step).all()) and tensor.is_contiguous():
        return {"rule": "arange", "start": int(flat[0]), "step": step}
    ordered = flat.sort().values
    if bool((ordered == torch.arange(len(flat), device=flat.device)).all()):
        return {"rule": "randperm"}
    distinct = int(ordered.unique_consecutive().numel())
    if len(flat) < DATA or distinct <= FEW or bool((ordered == flat).all()):
        return None
    negative = ordered[ordered < 0]
    if not len(negative) or int(negative[0]) != int(negative[-1]):
        return {"rule": "randint", "low": int(ordered[0]), "high": int(ordered[-1]) + 1}
    low, high = int(ordered[len(negative)]), int(ordered[-1]) + 1
    share = len(negative) / len(flat)
    return {"rule": "randint", "low": low, "high": high, "sentinel": int(negative[0]), "share": share}


def _kept(flat: torch.Tensor, folder: Path | None, name: str) -> dict[str, Any]:
    if folder is None:
        return {"rule": "kept"}
    file = f"{name}.npy"
    np.save(folder / file, _as_integers(flat).numpy())
    return {"rule": "kept", "file": file}


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_integers(flat: torch.Tensor) -> torch.Tensor:
    """Returns the same bits in a type that NumPy knows."""
    return flat.contiguous().view(_INTEGERS[flat.dtype.itemsize])


# --- drawing ---------------------------------------------------------------------------------------------------------


def is_fresh(form: Mapping[str, Any]) -> bool:
    """Returns whether `draw` gives other values for another seed."""
    return form["rule"] in ("quantiles", "randint", "randperm", "shuffled") and 0 not in form["shape"]


def draw(form: Mapping[str, Any], generator: torch.Generator, folder: Path) -> torch.Tensor:
    """Returns a tensor of this form on the generator's device."""
    dtype, count = getattr(torch, form["dtype"]), span(form["shape"], form["strides"])
    flat = _drawn(form, count, dtype, generator, folder)
    return flat.as_strided(form["shape"], form["strides"])


def _drawn(
    form: Mapping[str, Any], count: int, dtype: torch.dtype, generator: torch.Generator, folder: Path
) -> torch.Tensor:
    device = generator.device
    match form["rule"]:
        case "constant":
            return torch.full((count,), form["value"], dtype=dtype, device=device)
        case "quantiles":
            values = torch.tensor(form["values"], dtype=torch.float32)
            # A copy that blocks would wait for all that the GPU was given before.
            lower, rise = torch.stack((values[:-1], values.diff())).to(device, non_blocking=True)
            # Of few launches and passes over memory, which take most of a draw on a GPU.
            place = torch.rand(count, generator=generator, device=device).mul_(len(rise))
            left = place.int().clamp_(max=len(rise) - 1)
            return lower.index_select(0, left).addcmul_(rise.index_select(0, left), place.frac_()).to(dtype)
        case "randint":
            low, high = form["low"], form["high"]
            if dtype in _INDICES and "sentinel" not in form and count <= high - low <= MOST_DISTINCT:
                return (torch.randperm(high - low, generator=generator, device=device)[:count] + low).to(dtype)
            found = torch.randint(low, high, (count,), generator=generator, device=device).to(dtype)
            if "sentinel" in form:
                found[torch.rand(count, generator=generator, device=device) < form["share"]] = form["sentinel"]
            return found
        case "arange":
            return (torch.arange(count, device=device) * form["step"] + form["start"]).to(dtype)
        case "randperm":
            return torch.randperm(count, generator=generator, device=device).to(dtype)
        case "kept" | "shuffled":
            kept = torch.from_numpy(np.load(folder / form["file"], allow_pickle=False))
            stored = kept.to(device, non_blocking=True).view(dtype)
            if form["rule"] == "kept":
                return stored
            return stored[torch.randperm(count, generator=generator, device=device)]
    raise ValueError(f"unknown rule {form['rule']!r}")
