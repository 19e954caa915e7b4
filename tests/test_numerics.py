"""Number formats against torch's conversions and PTX's saturation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl

from fitness.interpreter.numerics import decode, encode, numpy_dtype, towards_zero

SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.14159, 1e-40, 3.4e38, float("inf"), float("-inf"), 65519.9, 1.00390625, 1.01171875]


def values(count: int = 4096) -> np.ndarray:
    generator = np.random.default_rng(3)
    wide = generator.standard_normal(count) * np.exp(generator.uniform(-80, 80, count))
    return np.concatenate([SPECIAL, wide]).astype(np.float32)


@pytest.mark.parametrize(("dtype", "kind"), [(tl.bfloat16, torch.bfloat16), (tl.float16, torch.float16)])
def test_rounding_is_to_nearest_even(dtype, kind):
    with np.errstate(over="ignore"):
        got = decode(encode(values(), dtype), dtype).astype(np.float32)
    assert np.array_equal(got, torch.from_numpy(values()).to(kind).float().numpy())
    assert np.isnan(decode(encode(np.array([np.nan, -np.nan]), dtype), dtype)).all()


@pytest.mark.parametrize(("dtype", "kind"), [(tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2)])
def test_float8_saturates(dtype, kind):
    largest = torch.finfo(kind).max
    got = decode(encode(values(), dtype), dtype)
    assert np.array_equal(got, torch.from_numpy(values()).clamp(-largest, largest).to(kind).float().numpy())
    raw = np.arange(256, dtype=np.uint8)
    finite = np.isfinite(decode(raw, dtype))
    assert np.array_equal(encode(decode(raw, dtype), dtype)[finite], raw[finite])


def test_float_to_integer_truncates_and_saturates():
    floats = np.array([1.9, -1.9, 3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520.0], np.float32)
    top, low = 2**31 - 1, -(2**31)
    assert encode(floats, tl.int32).tolist() == [1, -1, top, low, top, low, 0, 2147483520]
    assert encode(floats, tl.uint8).tolist() == [1, 0, 255, 0, 255, 0, 0, 255]
    assert encode(np.array([1e30, -1e30, 2.0**62]), tl.int64).tolist() == [2**63 - 1, -(2**63), 2**62]


@pytest.mark.parametrize("dtype", [tl.bfloat16, tl.float16])
def test_rounding_towards_zero_never_grows(dtype):
    inputs = values()[np.abs(values()) < 6e4]
    got = decode(towards_zero(inputs, dtype), dtype).astype(np.float32)
    nearest = decode(encode(inputs, dtype), dtype).astype(np.float32)
    assert (np.abs(got) <= np.abs(inputs)).all()
    assert np.array_equal(got[np.abs(nearest) <= np.abs(inputs)], nearest[np.abs(nearest) <= np.abs(inputs)])


def test_formats_the_device_lacks_are_refused():
    for call in (lambda: decode(np.zeros(1, np.uint8), tl.float8e4b15), lambda: encode(np.zeros(1), tl.float8e4b8)):
        with pytest.raises(NotImplementedError, match="number format fp8"):
            call()
    assert numpy_dtype(tl.pointer_type(tl.float32)) == np.uint64 and numpy_dtype(tl.bfloat16) == np.uint16
