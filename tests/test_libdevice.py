"""libdevice's functions in numpy: precision kept, values those of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fitness.interpreter import libdevice

X = np.linspace(0.05, 0.95, 64)


@pytest.mark.parametrize(
    ("symbol", "reference"),
    [
        ("__nv_expf", torch.exp),
        ("__nv_fast_expf", torch.exp),
        ("__nv_exp10f", lambda x: 10**x),
        ("__nv_log1pf", torch.log1p),
        ("__nv_tanhf", torch.tanh),
        ("__nv_fast_tanhf", torch.tanh),
        ("__nv_erff", torch.erf),
        ("__nv_erfcinvf", lambda x: torch.erfinv(1 - x)),
        ("__nv_rsqrtf", torch.rsqrt),
        ("__nv_frsqrt_rn", torch.rsqrt),
        ("__nv_cbrtf", lambda x: x ** (1 / 3)),
        ("__nv_lgammaf", torch.lgamma),
        ("__nv_normcdff", torch.special.ndtr),
        ("__nv_roundf", lambda x: torch.floor(x + 0.5)),
        ("__nv_frcp_rn", torch.reciprocal),
        ("__nv_saturatef", lambda x: x.clamp(0, 1)),
        ("__nv_sinpif", lambda x: torch.sin(torch.pi * x)),
        ("__nv_cyl_bessel_i0f", torch.special.i0),
    ],
)
def test_unary(symbol, reference):
    expected = reference(torch.from_numpy(X)).numpy()
    single, double = (libdevice.find(s)(X.astype(t)) for s, t in ((symbol, np.float32), (symbol, np.float64)))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=3e-6)
    np.testing.assert_allclose(double, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("symbol", "reference"),
    [
        ("__nv_powf", torch.pow),
        ("__nv_fast_powf", torch.pow),
        ("__nv_atan2f", torch.atan2),
        ("__nv_fmodf", torch.fmod),
        ("__nv_hypotf", torch.hypot),
        ("__nv_fdimf", lambda x, y: (x - y).clamp(min=0)),
        ("__nv_fast_fdividef", torch.div),
        ("__nv_fadd_rn", torch.add),
        ("__nv_copysignf", torch.copysign),
    ],
)
def test_binary(symbol, reference):
    y = X[::-1].copy()
    got = libdevice.find(symbol)(X.astype(np.float32), y.astype(np.float32))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference(torch.from_numpy(X), torch.from_numpy(y)).numpy(), rtol=2e-6, atol=1e-7)


def test_bits_and_predicates():
    integers = np.array([0, 1, 255, -1], np.int32)
    assert libdevice.find("__nv_popc")(integers).tolist() == [0, 1, 8, 32]
    assert libdevice.find("__nv_clz")(integers).tolist() == [32, 31, 24, 0]
    ones = libdevice.find("__nv_float_as_int")(np.ones(2, np.float32))
    assert ones.tolist() == [0x3F800000] * 2
    assert libdevice.find("__nv_isnanf")(np.array([np.nan, 1.0])).tolist() == [True, False]
    assert libdevice.find("__nv_float2int_rd")(np.array([-1.5])) == -2


def test_what_numpy_cannot_do_is_not_there():
    assert libdevice.find("__nv_fadd_rz") is None and libdevice.find("__nv_nothing") is None
