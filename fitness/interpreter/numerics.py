"""Converts Triton's number formats on numpy arrays, with the rounding and saturation of the device.

numpy has neither bfloat16 nor float8.  Like Triton's interpreter, this keeps them as unsigned integers of the same
width ("data" below).
"""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

_TORCH_FLOAT8 = {"fp8e4nv": (torch.float8_e4m3fn, 448.0), "fp8e5": (torch.float8_e5m2, 57344.0)}
_DATA = {"int1": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "uint16"}
_NUMPY: dict[str, np.dtype] = {}  # results of `numpy_dtype`, by the name of the type.
# The types that numpy has, by name: their data are their values.
_OF_NUMPY = {
    name: np.dtype(_DATA.get(name, name))
    for name in (
        "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp16", "fp32", "fp64",
    )
}  # fmt: skip


def numpy_dtype(dtype: tl.dtype) -> np.dtype:
    """The dtype of the data of a block of `dtype`; pointers are uint64."""
    scalar = dtype.scalar
    name = scalar.name
    found = _NUMPY.get(name)
    if found is None:
        if isinstance(scalar, tl.pointer_type):
            found = np.dtype(np.uint64)
        else:
            found = np.dtype("uint8" if name.startswith("fp8") else _DATA.get(name, name))
        _NUMPY[name] = found
    return found


def decode(data: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """Values that numpy can compute with: float32 for bfloat16 and float8, the data itself otherwise."""
    name = dtype.scalar.name
    if name in _OF_NUMPY:
        return data
    if name == "bf16":
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name in _TORCH_FLOAT8:
        raw = torch.from_numpy(np.array(data, dtype=np.uint8))
        return raw.view(_TORCH_FLOAT8[name][0]).float().numpy()
    if name.startswith("fp8"):
        raise NotImplementedError(f"the interpreter does not know the number format {name}")
    return data


def encode(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """The data for values (the inverse of `decode`), rounded to nearest even."""
    name = dtype.scalar.name
    if type(values) is np.ndarray and values.dtype is _OF_NUMPY.get(name):
        return values
    if name == "bf16":
        single = np.asarray(values, dtype=np.float32)
        bits = single.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        )
        return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
    if name in _TORCH_FLOAT8:  # PTX's conversions saturate.
        kind, largest = _TORCH_FLOAT8[name]
        clamped = torch.from_numpy(np.array(values, dtype=np.float32)).clamp(-largest, largest)
        return clamped.to(kind).view(torch.uint8).numpy()
    if name.startswith("fp8"):
        raise NotImplementedError(f"the interpreter does not know the number format {name}")
    wanted = numpy_dtype(dtype)
    if wanted.kind in "iu" and np.asarray(values).dtype.kind == "f":
        return _to_integer(np.asarray(values), wanted)
    return np.asarray(values).astype(wanted, copy=False)


def _to_integer(values: np.ndarray, wanted: np.dtype) -> np.ndarray:
    """Floats as integers, converted like `cvt.rzi`: towards zero, saturating, NaN becomes 0."""
    limits = np.iinfo(wanted)
    whole = np.trunc(np.where(np.isnan(values), 0, values)).astype(np.float64)
    inside = np.clip(whole, float(limits.min), float(limits.max))
    # float(max) of a 64-bit type rounds up to 2**63 or 2**64, which no longer fits.
    result = np.where(inside >= float(limits.max), 0, inside).astype(wanted)
    return np.where(whole >= float(limits.max), wanted.type(limits.max), result)


def towards_zero(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """`values` (float32) in bfloat16 or float16, rounded towards zero."""
    single = np.asarray(values, dtype=np.float32)
    if dtype.scalar.name == "bf16":
        return (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if dtype.scalar.name != "fp16":
        raise NotImplementedError(f"the interpreter cannot round towards zero to {dtype}")
    half = single.astype(np.float16)
    return np.where(np.abs(half.astype(np.float32)) > np.abs(single), np.nextafter(half, np.float16(0)), half)
